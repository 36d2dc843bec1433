"""Pretrain a GPT with nothing but PyPI's megatron-core (0.17 or later, which ships megatron.training).

    torchrun --nproc-per-node 8 -m megatron_energy.run scripts/pretrain_gpt.py --train-text corpus.txt ...  on GPUs
    python -m megatron_energy.run --nproc 16 scripts/pretrain_gpt.py --train-text corpus.txt ...            without

All of Megatron's options apply. Data comes from ``--train-text FILE`` (byte-level tokens), from ``--data-path`` or from
``--mock-data``; layers from ``--transformer-impl`` (local or transformer_engine).
"""

import argparse
import inspect
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from megatron.core import mpu
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig, MockGPTDataset
from megatron.core.datasets.utils import Split, get_blend_from_list
from megatron.core.enums import ModelType
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec, get_gpt_layer_with_transformer_engine_spec
from megatron.training import arguments, get_args, get_tokenizer, pretrain
from megatron.training.arguments import core_transformer_config_from_args

BYTES = 256
HELD_OUT = 0.05  # of the text, at its end, for validation and test
Batch = dict[str, torch.Tensor]


class TextWindows(torch.utils.data.Dataset[Batch]):
    """Windows of a text at random places; window i is the same in every run and on every rank.

    Attributes:
        split: train, valid or test: Megatron's loader reads it.
    """

    def __init__(self, text: np.ndarray[Any, Any], split: Split, windows: int, length: int, seed: int, mask: bool) -> None:
        self.split = split
        self._text = text
        self._windows = windows
        self._length = length
        self._seed = (seed, split.value)
        self._mask = torch.tril(torch.ones(1, length, length)) < 0.5 if mask else None

    def __len__(self) -> int:
        return self._windows

    def __getitem__(self, index: int) -> Batch:
        start = int(np.random.default_rng((*self._seed, index)).integers(len(self._text) - self._length))
        window = torch.from_numpy(self._text[start : start + self._length + 1].astype(np.int64))
        sample = {
            "tokens": window[:-1],
            "labels": window[1:],
            "loss_mask": torch.ones(self._length),
            "position_ids": torch.arange(self._length),
        }
        return sample if self._mask is None else {**sample, "attention_mask": self._mask}


def add_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Our one flag beside Megatron's."""
    group = parser.add_argument_group("text")
    group.add_argument("--train-text", metavar="FILE", default=None, help="train on the bytes of this file; needs no tokenizer")
    return parser


def text_datasets(path: str, samples: list[int]) -> list[TextWindows]:
    """Train, validation and test windows of a text file."""
    args = get_args()
    if not Path(path).is_file():
        sys.exit(f"error: --train-text {path}: no such file; scripts/make_corpus.py writes one")
    text = np.memmap(path, dtype=np.uint8, mode="r")
    held_out = max(int(len(text) * HELD_OUT), args.seq_length + 1)
    if len(text) < 2 * held_out:
        sys.exit(f"error: --train-text {path}: {len(text)} bytes are too few for --seq-length {args.seq_length}; give a longer text")
    parts = (text[:-held_out], text[-held_out:], text[-held_out:])
    mask = args.create_attention_mask_in_dataloader
    return [
        TextWindows(part, split, max(count or 0, 1), args.seq_length, args.seed, mask)
        for part, split, count in zip(parts, (Split.train, Split.valid, Split.test), samples, strict=True)
    ]


def datasets(samples: list[int], vp_stage: int | None = None) -> Any:
    """Megatron's provider of datasets: train, validation and test, of at least ``samples`` samples."""
    args = get_args()
    if args.train_text is not None:
        return text_datasets(args.train_text, samples)
    wanted = {
        "random_seed": args.seed,
        "sequence_length": args.seq_length,
        "blend": get_blend_from_list(args.data_path),
        "split": args.split or "969,30,1",
        "path_to_cache": args.data_cache_path,
        "tokenizer": get_tokenizer(),
        "reset_position_ids": args.reset_position_ids,
        "reset_attention_mask": args.reset_attention_mask,
        "eod_mask_loss": args.eod_mask_loss,
        "create_attention_mask": args.create_attention_mask_in_dataloader,
        "mid_level_dataset_surplus": getattr(args, "mid_level_dataset_surplus", 0.005),
    }
    config = GPTDatasetConfig(**_accepted(GPTDatasetConfig, wanted))
    kind = MockGPTDataset if args.mock_data else GPTDataset
    return BlendedMegatronDatasetBuilder(kind, samples, lambda: True, config).build()


datasets.is_distributed = True  # type: ignore[attr-defined]  # every rank reads its own batches: nothing to broadcast


def model_provider(
    pre_process: bool = True, post_process: bool = True, vp_stage: int | None = None, config: Any = None, **_: Any
) -> GPTModel:
    """One model chunk, where Megatron does not build it from its own configuration (0.17)."""
    args = get_args()
    if args.transformer_impl == "local":
        layer = get_gpt_layer_local_spec(args.num_experts, args.moe_grouped_gemm, args.qk_layernorm, normalization=args.normalization)
    else:
        layer = get_gpt_layer_with_transformer_engine_spec(args.num_experts, args.moe_grouped_gemm, args.qk_layernorm)
    return GPTModel(
        config=config or core_transformer_config_from_args(args),
        transformer_layer_spec=layer,
        vocab_size=args.padded_vocab_size,
        max_sequence_length=args.max_position_embeddings,
        pre_process=pre_process,
        post_process=post_process,
        parallel_output=True,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
        position_embedding_type=args.position_embedding_type,
        rotary_percent=args.rotary_percent,
        rotary_base=args.rotary_base,
        vp_stage=vp_stage,
    )


def on_this_context_rank(batch: Batch) -> Batch:
    """This context-parallel rank's two of 2 x CP slices of the sequence: one from each end, so that causal work is balanced."""
    size, rank = mpu.get_context_parallel_world_size(), mpu.get_context_parallel_rank()
    if size == 1:
        return batch
    batch.pop("attention_mask", None)  # context parallelism computes a causal mask itself
    slices = {name: value.chunk(2 * size, dim=1) for name, value in batch.items()}
    return {name: torch.cat((parts[rank], parts[2 * size - 1 - rank]), dim=1) for name, parts in slices.items()}


def loss(mask: torch.Tensor, output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Sum of the token losses, number of tokens, and both together for the log."""
    weight = mask.reshape(-1).float()
    tokens = weight.sum().int()
    total = (output.float().reshape(-1) * weight).sum()
    return total, tokens, {"lm loss": torch.cat([total.detach().view(1), tokens.detach().view(1).float()])}


def forward_step(batches: Iterator[Batch], model: Any, return_schedule_plan: bool = False) -> tuple[Any, Callable[..., Any]]:
    """One microbatch through one model chunk; with ``return_schedule_plan`` the layers to run, which Megatron mixes with a backward's."""
    batch = on_this_context_rank({name: value.cuda(non_blocking=True) for name, value in next(batches).items()})
    run = innermost(model).build_schedule_plan if return_schedule_plan else model
    output = run(batch["tokens"], batch["position_ids"], batch.get("attention_mask"), labels=batch["labels"])
    return output, partial(loss, batch["loss_mask"])


def innermost(model: Any) -> Any:
    """The model inside its wrappers."""
    while hasattr(model, "module"):
        model = model.module
    return model


def _accepted(function: Callable[..., Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """Those arguments that this version's function has."""
    return {name: value for name, value in wanted.items() if name in inspect.signature(function).parameters}


def main() -> None:
    """Hand everything to Megatron's pretrain, as this version takes it."""
    common = {"train_valid_test_dataset_provider": datasets, "model_type": ModelType.encoder_or_decoder, "forward_step_func": forward_step}
    text = any(word.split("=")[0] == "--train-text" for word in sys.argv)
    defaults = {"tokenizer_type": "NullTokenizer", "vocab_size": BYTES} if text else {}
    if "extra_args_provider" in inspect.signature(pretrain).parameters:  # 0.17
        pretrain(**common, model_provider=model_provider, extra_args_provider=add_arguments, args_defaults=defaults)
        return
    from megatron.training import argument_utils

    args = arguments.parse_and_validate_args(extra_args_provider=add_arguments, args_defaults=defaults)
    if hasattr(argument_utils, "gpt_config_from_args"):
        container = argument_utils.pretrain_cfg_container_from_args(args, argument_utils.gpt_config_from_args(args))
        pretrain(container, **common)
    else:  # 0.18
        pretrain(argument_utils.pretrain_cfg_container_from_args(args), **common, model_provider=model_provider)


if __name__ == "__main__":
    main()
