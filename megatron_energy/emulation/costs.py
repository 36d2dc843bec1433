"""From a model's shape to the load of each operation: floating-point work, memory traffic, communication.

Formulas: matrix products as in Narayanan et al. (arXiv 2104.04473, appendix): two FLOP per weight and token, and attention
scores; with a causal kernel only half of the scores are computed. Backward is twice the forward, plus another forward with full
recomputation. Element-wise traffic from the activations that a layer stores (Korthikanti et al., arXiv 2205.05198, table 2: 34
bytes per token and hidden unit, attention scores left out as fused kernels do not store them), written once and read once.

Not modelled: mixture of experts, communication hidden behind computation (context parallelism's ring), kernel launch gaps.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from megatron_energy.emulation.catalog import GpuModel
from megatron_energy.emulation.models import LlmModel
from megatron_energy.emulation.physics import Load
from megatron_energy.errors import UserError

Dtype: TypeAlias = Literal["bf16", "fp16", "fp32"]

_STORED_BYTES = 34  # per token and hidden unit, 16-bit (arXiv 2205.05198, table 2) ...
_STORED_BYTES_SERIAL = 10  # ... of which tensor parallelism alone does not split these
_HEAD_BYTES = 16  # per logit: fp32 logits written, read, exponentiated, normalised (estimate)
_OPTIMIZER_BYTES = (
    30  # Adam, mixed precision, per weight: fp32 gradient read, fp32 weight and two moments read and written, 16-bit weight written
)
_GEMM_MEMORY = 0.06  # memory activity of large matrix products; the fit of physics.py uses the same
_STREAMING_COMPUTE = 0.4  # SM activity of element-wise kernels (estimate from memory-bound A800 layers: 328 W at 1410 MHz)
_LINK_COMPUTE = 0.1  # SM activity of NCCL kernels: they spin on a few SMs, little more than waiting (estimate)
_LINK_MEMORY = 0.25  # memory activity while NCCL moves data at link speed (estimate)


@dataclass(frozen=True)
class Sizes:
    """How a model is spread over GPUs; every size is at least 1.

    Attributes:
        stages, chunks: pipeline stages, model chunks of each (virtual pipeline).
        tensor, context, data: parallel sizes; ranks are laid out tensor first, then context, data, pipeline.
        gpus_per_node: decides which traffic stays on NVLink.
        sequence_parallel: element-wise work is split over the tensor ranks too.
        distributed_optimizer: optimizer state is split over the data-parallel ranks.
        recompute: full activation recomputation.
        grad_bytes: bytes of a reduced gradient (Megatron reduces in fp32 by default).
    """

    stages: int
    chunks: int = 1
    tensor: int = 1
    context: int = 1
    data: int = 1
    gpus_per_node: int = 8
    sequence_parallel: bool = True
    distributed_optimizer: bool = True
    recompute: bool = False
    grad_bytes: int = 4

    def __post_init__(self) -> None:
        for field in ("stages", "chunks", "tensor", "context", "data", "gpus_per_node"):
            if getattr(self, field) < 1:
                raise UserError(f"emulated layout: {field} must be at least 1, not {getattr(self, field)}")


@dataclass(frozen=True)
class ModelCosts:
    """Loads of one GPU for every operation of a model: see the module's text for the formulas."""

    gpu: GpuModel
    model: LlmModel
    sizes: Sizes
    micro_batch: int
    seq: int
    dtype: Dtype = "bf16"

    def __post_init__(self) -> None:
        if self.model.layers < self.sizes.stages * self.sizes.chunks:
            parts = f"{self.sizes.stages} stages x {self.sizes.chunks} chunks"
            raise UserError(
                f"model '{self.model.name}' has {self.model.layers} layers, fewer than {parts}: choose a deeper model or fewer stages"
            )

    @property
    def _element_bytes(self) -> int:
        return 4 if self.dtype == "fp32" else 2

    @property
    def _tokens(self) -> float:
        """Tokens of one microbatch on one GPU."""
        return self.micro_batch * self.seq / self.sizes.context

    def layers(self, stage: int, chunk: int) -> int:
        """Layers of one chunk; a remainder goes to the first chunks in the order of the model."""
        parts = self.sizes.stages * self.sizes.chunks
        each, remainder = divmod(self.model.layers, parts)
        return each + (chunk * self.sizes.stages + stage < remainder)

    def _is_first(self, stage: int, chunk: int) -> bool:
        return stage == 0 and chunk == 0

    def _is_last(self, stage: int, chunk: int) -> bool:
        return stage == self.sizes.stages - 1 and chunk == self.sizes.chunks - 1

    def forward(self, stage: int, chunk: int) -> Load:
        """Forward of one chunk for one microbatch."""
        return self._operation(stage, chunk, passes=1.0, head_passes=1.0)

    def backward(self, stage: int, chunk: int) -> Load:
        """Backward of one chunk for one microbatch; recomputation covers the layers, not the output head."""
        return self._operation(stage, chunk, passes=3.0 if self.sizes.recompute else 2.0, head_passes=2.0)

    def _operation(self, stage: int, chunk: int, passes: float, head_passes: float) -> Load:
        """Load of ``passes`` times the forward's work. Tensor-parallel traffic is the same in both directions (two reductions a layer)."""
        layers, first, last = self.layers(stage, chunk), self._is_first(stage, chunk), self._is_last(stage, chunk)
        gemm_s = passes * layers * self._layer_gemm_s() + last * head_passes * self._gemm_s(2.0 * self.model.embedding_parameters)
        stream_bytes = passes * layers * self._layer_stream_bytes()
        stream_bytes += first * 2.0 * self._tokens * self.model.hidden * self._element_bytes
        stream_bytes += last * head_passes * self._tokens * self.model.vocab * _HEAD_BYTES / self.sizes.tensor
        reductions = 2.0 * layers * (2.0 if passes > 2.0 else 1.0) + (first or last)
        return self._mix(gemm_s, stream_bytes, reductions * self._tensor_reduction_s())

    def _layer_gemm_s(self) -> float:
        scores = 2.0 * self.seq * self.model.hidden  # causal half of 4 s h per token
        return self._gemm_s(2.0 * self.model.layer_parameters + scores)

    def _gemm_s(self, flop_per_token: float) -> float:
        """Seconds at the maximum clock for matrix products that are split over the tensor ranks."""
        gpu = self.gpu
        peak = gpu.peak_bf16_flop_s * gpu.sm_clock_max_mhz / gpu.peak_clock_mhz
        if self.dtype == "fp32":
            peak /= 2.0  # TF32: half the BF16 rate on A100 and H100 (data sheets)
        return flop_per_token * self._tokens / self.sizes.tensor / (peak * gpu.gemm_efficiency)

    def _layer_stream_bytes(self) -> float:
        serial = 0.0 if self.sizes.sequence_parallel else _STORED_BYTES_SERIAL
        per_token = serial + (_STORED_BYTES - serial) / self.sizes.tensor
        return per_token * self._tokens * self.model.hidden * self._element_bytes  # of 16 bits each, written and read

    def _tensor_reduction_s(self) -> float:
        """One all-reduce of a microbatch's activations over the tensor ranks (reduce-scatter plus all-gather moves as much)."""
        ways = self.sizes.tensor
        volume = self._tokens * self.model.hidden * self._element_bytes
        return _ring_s(2.0 * volume, ways, self._link_bytes_s(span=ways))

    def _link_bytes_s(self, span: int) -> float:
        """Reachable bandwidth among ``span`` consecutive ranks."""
        link = self.gpu.link_bytes_s if span <= self.sizes.gpus_per_node else self.gpu.network_bytes_s
        return link * self.gpu.link_efficiency

    def _mix(self, gemm_s: float, stream_bytes: float, link_s: float) -> Load:
        """One load from its parts; activities are means over the time at the maximum clock."""
        stream_s = stream_bytes / (self.gpu.memory_bytes_s * self.gpu.memory_efficiency)
        total = gemm_s + stream_s + link_s
        return Load(
            scaling_s=gemm_s + self.gpu.link_clock_share * link_s,
            fixed_s=stream_s + (1.0 - self.gpu.link_clock_share) * link_s,
            compute=(gemm_s + _STREAMING_COMPUTE * stream_s + _LINK_COMPUTE * link_s) / total,
            memory=(_GEMM_MEMORY * gemm_s + stream_s + _LINK_MEMORY * link_s) / total,
        )

    def stage_parameters(self, stage: int) -> float:
        """Weights on one GPU of a stage."""
        model, sizes = self.model, self.sizes
        count = sum(self.layers(stage, chunk) for chunk in range(sizes.chunks)) * model.layer_parameters
        ends = (stage == 0) + (stage == sizes.stages - 1 and sizes.stages > 1)
        return (count + ends * model.embedding_parameters) / sizes.tensor

    def grad_sync(self, stage: int) -> Load:
        """Reduction of a stage's gradients over its replicas: reduce-scatter with a distributed optimizer, else all-reduce."""
        sizes = self.sizes
        passes = 1.0 if sizes.distributed_optimizer else 2.0
        return self._among_replicas(passes * self.stage_parameters(stage) * sizes.grad_bytes)

    def optimizer(self, stage: int) -> Load:
        """Adam step of one GPU, and the all-gather of the updated weights with a distributed optimizer."""
        sizes, weights = self.sizes, self.stage_parameters(stage)
        share = self._replicas if sizes.distributed_optimizer else 1
        update_s = _OPTIMIZER_BYTES * weights / share / (self.gpu.memory_bytes_s * self.gpu.memory_efficiency)
        gather = self._among_replicas(weights * self._element_bytes if sizes.distributed_optimizer else 0.0)
        total = update_s + gather.scaling_s + gather.fixed_s
        blend = update_s / total
        return Load(
            scaling_s=gather.scaling_s,
            fixed_s=update_s + gather.fixed_s,
            compute=blend * _STREAMING_COMPUTE + (1.0 - blend) * gather.compute,
            memory=blend + (1.0 - blend) * gather.memory,
        )

    @property
    def _replicas(self) -> int:
        """Ranks with the same weights: context-parallel ranks hold them, too."""
        return self.sizes.data * self.sizes.context

    def _among_replicas(self, volume: float) -> Load:
        """A collective of the ranks with the same weights, as an operation of its own."""
        span = self._replicas * self.sizes.tensor
        seconds = _ring_s(volume, self._replicas, self._link_bytes_s(span))
        scaling = self.gpu.link_clock_share * seconds if span <= self.sizes.gpus_per_node else 0.0
        return Load(scaling, seconds - scaling, _LINK_COMPUTE, _LINK_MEMORY)

    def transfer_s(self) -> float:
        """One point-to-point transfer of a microbatch's activations to the neighbouring stage (split over the tensor ranks)."""
        split = self.sizes.tensor if self.sizes.sequence_parallel else 1
        volume = self._tokens * self.model.hidden * self._element_bytes / split
        stride = self.sizes.tensor * self.sizes.context * self.sizes.data
        span = stride * self.sizes.stages  # neighbours share a node only where the whole pipeline does
        return self.gpu.transfer_latency_s + volume / self._link_bytes_s(span)


def _ring_s(volume: float, ways: int, bytes_s: float) -> float:
    """Seconds of a ring collective that moves ``volume`` x (ways - 1) / ways bytes through every GPU's link."""
    return volume * (ways - 1) / ways / bytes_s
