"""Megatron on a host without GPUs: torch's CUDA names answer with the CPU, gloo carries the communication.

Nothing of Megatron's own code is copied; a few of its names are rebound when their modules are imported. Losses and
gradients are those of Megatron's code in float arithmetic of the CPU. Nothing is installed unless CPU emulation was asked for.
"""

import contextlib
import os
import typing
from collections.abc import Callable
from typing import TypeVar

from megatron_energy.errors import UserError
from megatron_energy.megatron.imports import replace

_Method = TypeVar("_Method", bound=Callable[..., object])

_state = {"installed": False}


def _override(method: _Method) -> _Method:
    """What typing.override does at run time."""
    with contextlib.suppress(AttributeError, TypeError):  # builtins and the like take no attributes
        method.__override__ = True  # type: ignore[attr-defined]
    return method


def installed() -> bool:
    """Whether this process runs on CPU shims."""
    return _state["installed"]


def has_cuda() -> bool:
    """Whether torch finds a CUDA device, or the shims that stand for one."""
    import torch

    return torch.cuda.is_available()


def install(force: bool = False) -> None:
    """Make torch and Megatron run on CPU and gloo in this process and its forks. Call it before Megatron is imported.

    Args:
        force: also on a host with CUDA; its GPUs are then left alone.

    Raises:
        UserError: the host has a working CUDA and ``force`` is not given.
    """
    if _state["installed"]:
        return
    if force:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # Megatron's fusions are torch.compile
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # Megatron asserts it; it means nothing here
    import torch
    import torch._dynamo  # builds a table of torch's functions, which must be torch's own by then

    if torch.cuda.is_available():
        raise UserError(
            "this host has CUDA, so CPU emulation stays off: launch with torchrun or srun, or add --force-cpu to leave its GPUs alone"
        )
    if not hasattr(typing, "override"):  # Python < 3.12; megatron-core >= 0.18 imports it
        replace(typing, override=_override)
    from megatron_energy.megatron.cpu import cuda_names, gloo, helpers, megatron_fixes, tensors, triton_stub

    triton_stub.install()
    tensors.install()
    cuda_names.install()
    gloo.install()
    helpers.install()
    megatron_fixes.install()
    torch.set_num_threads(1)
    _state["installed"] = True
