"""Language models by name: the shapes that decide how long a layer takes. Sources stand beside each."""

from dataclasses import dataclass

from megatron_energy.errors import UserError


@dataclass(frozen=True)
class LlmModel:
    """A dense decoder-only transformer.

    Attributes:
        name: for messages.
        layers, hidden, heads: depth, width, attention heads.
        ffn: width of the feed-forward layer.
        vocab: vocabulary (as padded in training).
        seq: tokens of a sample.
        kv_heads: heads of keys and values (grouped-query attention); 0 means ``heads``.
        gated: the feed-forward layer has three matrices (SwiGLU), else two.
        source: where the figures come from.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    ffn: int
    vocab: int
    seq: int
    kv_heads: int = 0
    gated: bool = False
    source: str = "given"

    def __post_init__(self) -> None:
        for field in ("layers", "hidden", "heads", "ffn", "vocab", "seq"):
            if getattr(self, field) < 1:
                raise UserError(f"model '{self.name}': {field} must be at least 1, not {getattr(self, field)}")

    @property
    def attention_parameters(self) -> int:
        """Weights of the four projections of one layer."""
        groups = self.kv_heads or self.heads
        return 2 * self.hidden * self.hidden + 2 * self.hidden * self.hidden * groups // self.heads

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer; norms and biases are left out (below 0.1%)."""
        return self.attention_parameters + (3 if self.gated else 2) * self.hidden * self.ffn

    @property
    def embedding_parameters(self) -> int:
        """Weights of the token embedding; the output head has as many."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """Weights of the model with tied embeddings."""
        return self.layers * self.layer_parameters + self.embedding_parameters


_GPT3 = "GPT-3 (arXiv 2005.14165), table 2.1; vocabulary padded to 51200 as in Megatron-LM (arXiv 2104.04473)"
_BLOOM = "BLOOM (arXiv 2211.05100), table 3"
_LLAMA2 = "Llama 2 (arXiv 2307.09288), and the published model configurations"
_LLAMA3 = "The Llama 3 Herd of Models (arXiv 2407.21783), table 3"

_MODELS = (
    LlmModel("gpt3-1.3b", 24, 2048, 16, 8192, 51200, 2048, source=_GPT3 + "; 16 heads as Megatron-LM trains it"),
    LlmModel("gpt3-2.7b", 32, 2560, 32, 10240, 51200, 2048, source=_GPT3),
    LlmModel("gpt3-13b", 40, 5120, 40, 20480, 51200, 2048, source=_GPT3 + "; width 5120 = 40 heads x 128"),
    LlmModel("gpt3-175b", 96, 12288, 96, 49152, 51200, 2048, source=_GPT3),
    LlmModel("bloom-176b", 70, 14336, 112, 57344, 250880, 2048, source=_BLOOM),
    LlmModel("llama2-7b", 32, 4096, 32, 11008, 32000, 4096, gated=True, source=_LLAMA2),
    LlmModel("llama2-70b", 80, 8192, 64, 28672, 32000, 4096, kv_heads=8, gated=True, source=_LLAMA2),
    LlmModel("llama3-8b", 32, 4096, 32, 14336, 128256, 8192, kv_heads=8, gated=True, source=_LLAMA3),
    LlmModel("llama3-70b", 80, 8192, 64, 28672, 128256, 8192, kv_heads=8, gated=True, source=_LLAMA3),
    LlmModel("llama3-405b", 126, 16384, 128, 53248, 128256, 8192, kv_heads=8, gated=True, source=_LLAMA3),
)
MODELS: dict[str, LlmModel] = {model.name: model for model in _MODELS}


def named(name: str) -> LlmModel:
    """The model with this name; case does not matter.

    Raises:
        UserError: there is no such model.
    """
    try:
        return MODELS[name.lower()]
    except KeyError:
        raise UserError(f"unknown model '{name}': choose one of {', '.join(MODELS)}") from None
