"""Tensor factories and methods that name a CUDA device make CPU tensors instead."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from megatron_energy.megatron.imports import replace

CPU = torch.device("cpu")

_FACTORIES = [
    "empty", "zeros", "ones", "full", "tensor", "as_tensor", "arange", "linspace",
    "logspace", "eye", "rand", "randn", "randint", "randperm", "empty_like", "zeros_like",
    "ones_like", "full_like", "rand_like", "randn_like", "empty_strided", "triu_indices", "tril_indices",
]  # fmt: skip
_METHODS = ["new_empty", "new_zeros", "new_ones", "new_full", "new_tensor"]


def is_cuda(device: Any) -> bool:
    """Whether a ``device`` argument means a CUDA device (torch takes a bare index as one)."""
    if device is None or isinstance(device, bool):
        return False
    if isinstance(device, str):
        return device.split(":")[0] == "cuda"
    return isinstance(device, int) or (isinstance(device, torch.device) and device.type == "cuda")


def _on_cpu(factory: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(factory)
    def make(*args: Any, **kwargs: Any) -> Any:
        if is_cuda(kwargs.get("device")):
            kwargs["device"] = CPU
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return factory(*args, **kwargs)

    return make


def _same(self: Any, *_args: Any, **_kwargs: Any) -> Any:
    return self


def install() -> None:
    """Rebind torch's factories and the device methods of Tensor and Module."""
    for name in _FACTORIES:
        replace(torch, **{name: _on_cpu(getattr(torch, name))})
    for name in _METHODS:
        replace(torch.Tensor, **{name: _on_cpu(getattr(torch.Tensor, name))})
    to, tensor_type = torch.Tensor.to, torch.Tensor.type

    def to_cpu(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if args and is_cuda(args[0]):
            args = (CPU, *args[1:])
        if is_cuda(kwargs.get("device")):
            kwargs["device"] = CPU
        return to(self, *args, **kwargs)

    def cuda_type(self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Megatron's optimizers compare ``param.type()`` with 'torch.cuda.FloatTensor'."""
        if dtype is None:
            return str(tensor_type(self)).replace("torch.", "torch.cuda.", 1)
        if isinstance(dtype, str):
            dtype = dtype.replace("torch.cuda.", "torch.")
        return tensor_type(self, dtype, *args, **kwargs)

    replace(torch.Tensor, to=to_cpu, type=cuda_type, cuda=_same, pin_memory=_same, record_stream=lambda self, stream: None)
    replace(torch.nn.Module, cuda=_same)
