"""The part of torch.cuda that Megatron calls, answered by the CPU: one device, one stream, no waiting."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import torch

from megatron_energy.megatron.cpu.tensors import CPU
from megatron_energy.megatron.imports import replace


def _no_op() -> Callable[..., None]:
    """A new function that does nothing: torch's own tables must not meet one function under two names."""

    def nothing(*_args: Any, **_kwargs: Any) -> None:
        return None

    return nothing


class Stream:
    """A stream on which everything is already done."""

    cuda_stream = 0
    device = CPU

    def __init__(self, *_args: Any, **_kwargs: Any) -> None: ...

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_exception: Any) -> None:
        return None

    def record_event(self, event: "Event | None" = None) -> "Event":
        """The event, recorded now."""
        event = event or Event()
        event.record()
        return event

    def query(self) -> bool:
        """Always done."""
        return True

    wait_event = wait_stream = synchronize = _no_op()


class Event:
    """An event that completes when it is recorded, on the host's clock."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        self._time_s = 0.0

    def record(self, *_args: Any) -> None:
        """Take the time."""
        self._time_s = time.perf_counter()

    def elapsed_time(self, end: "Event") -> float:
        """Milliseconds from this event to ``end``."""
        return (end._time_s - self._time_s) * 1e3

    def query(self) -> bool:
        """Always done."""
        return True

    wait = synchronize = _no_op()


class DeviceProperties:
    """What Megatron asks of a device; the numbers only select code paths of a current GPU."""

    name = "cpu"
    major = 9
    minor = 0
    multi_processor_count = 1
    total_memory = 1 << 30


class _Generators:
    """torch.cuda.default_generators: every index is the CPU generator."""

    def __getitem__(self, index: int) -> torch.Generator:
        return torch.default_generator

    def __len__(self) -> int:
        return 1


def _call_now(function: Callable[[], Any], **_kwargs: Any) -> None:
    """Torch queues lazy calls until CUDA starts, which never happens: RNG restores would be lost silently."""
    function()


def _seed(seed: int) -> None:
    torch.default_generator.manual_seed(int(seed))


def install() -> None:
    """Rebind torch.cuda, torch.cuda.nvtx and torch.compile."""
    cuda = torch.cuda
    stream = Stream()
    names: dict[str, Any] = {
        "Stream": Stream,
        "Event": Event,
        "stream": lambda *_args, **_kwargs: contextlib.nullcontext(),
        "current_device": lambda: CPU,  # so that device=torch.cuda.current_device() works
        "is_available": lambda: True,  # Megatron's training asserts it
        "device_count": lambda: 1,
        "_lazy_call": _call_now,
        "default_generators": _Generators(),
        "manual_seed": _seed,
        "manual_seed_all": _seed,
        "get_device_properties": lambda *_args, **_kwargs: DeviceProperties(),
        "get_device_capability": lambda *_args, **_kwargs: (DeviceProperties.major, DeviceProperties.minor),
        "get_device_name": lambda *_args, **_kwargs: DeviceProperties.name,
    }
    random = {
        "get_rng_state": lambda *_args, **_kwargs: torch.get_rng_state(),
        "set_rng_state": lambda state, *_args, **_kwargs: torch.set_rng_state(state),
    }
    replace(cuda, **names, **random)
    for name in ("current_stream", "default_stream"):
        replace(cuda, **{name: lambda *_args, **_kwargs: stream})
    for name in ("set_stream", "synchronize", "empty_cache", "reset_peak_memory_stats", "set_device", "_lazy_init"):
        replace(cuda, **{name: _no_op()})
    replace(cuda.random, **random)
    replace(cuda.nvtx, range_push=_no_op(), range_pop=_no_op(), mark=_no_op())
    replace(torch, compile=lambda model=None, **_kwargs: model if model is not None else (lambda function: function))
