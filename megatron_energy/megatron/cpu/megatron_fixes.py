"""Names of Megatron that need a GPU or a compiler, rebound when their modules are imported."""

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import torch

from megatron_energy.megatron.imports import replace, when_imported


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    return None


def _unless_empty(change: Callable[..., None]) -> Callable[..., None]:
    """``change``, but not of an empty list."""

    def run(parameters: Sequence[Any], *args: Any, **kwargs: Any) -> None:
        if parameters:
            change(parameters, *args, **kwargs)

    return run


def _norm(_cls: type, config: Any, hidden_size: int, eps: float = 1e-5, **_kwargs: Any) -> torch.nn.Module:
    """Megatron's wrapper refuses torch norms with sequence parallelism; they are right once their parameters carry the mark."""
    kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
    norm = kind(hidden_size, eps=eps)
    for parameter in norm.parameters():
        replace(parameter, sequence_parallel=config.sequence_parallel)
    return norm


def install() -> None:
    """Register the changes; each happens when Megatron imports that module."""

    @when_imported("megatron.core.transformer.torch_norm")
    def norms(module: Any) -> None:
        replace(module.WrappedTorchNorm, __new__=_norm)

    @when_imported("megatron.core.datasets.utils")
    def dataset_helpers(module: Any) -> None:
        # The wheel ships the compiled helpers; compiling them again needs make and pybind11 of the same Python.
        if importlib.util.find_spec("megatron.core.datasets.helpers_cpp") is not None:
            replace(module, compile_helpers=_nothing)

    @when_imported("megatron.legacy.fused_kernels")
    def fused_kernels(module: Any) -> None:
        replace(module, load=_nothing)  # wants nvcc

    @when_imported("megatron.training.initialize")
    def warm_up(module: Any) -> None:
        # It draws from the generator, which all devices share here: initial weights would depend on the layout.
        replace(module, _warmup_jit_function=_nothing)

    @when_imported("megatron.core.transformer.moe.moe_utils")
    def moe_utils(module: Any) -> None:
        # megatron-core 0.16 reads this name of Transformer Engine even where that is not installed.
        if not hasattr(module, "te_general_gemm"):
            replace(module, te_general_gemm=None)

    @when_imported("megatron.core.fp8_utils")
    def fp8_utils(module: Any) -> None:
        # megatron-core 0.12 casts to fp8 after every step of the distributed optimizer, which fails without Transformer Engine,
        # also where no parameter is fp8.
        if hasattr(module, "_quantize_param_shard_impl"):
            replace(module, _quantize_param_shard_impl=_unless_empty(module._quantize_param_shard_impl))
