"""CUDA events for the clock controller, with the host time at which each was reached; and no controller during graph capture."""

import functools
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from megatron_energy.gpus.errors import GpuError
from megatron_energy.megatron.imports import replace

REBASE_S = 60.0  # CUDA gives elapsed times as 32-bit floats of ms: over a minute they are exact to 4 us
DRIFT = 20e-6  # assumed most that host and GPU clocks drift apart, in s per s (ordinary crystals)


class GpuClock:
    """Turns elapsed times between CUDA events into times of the host's monotonic clock.

    A host that waits for an event wakes up late, by 0.1 ms or, with a busy main thread, by some ms. But never early: so the earliest
    waking seen, relative to the GPU's own time, gives the offset between the two clocks. A reached time is therefore never too
    early by more than the drift in :data:`REBASE_S`, and too late only as far as *every* recent waking was late.
    """

    def __init__(self, reference: Any, clock: Callable[[], float] = time.monotonic) -> None:
        """``reference``: a CUDA event of the stream with timing, recorded now; waits for it once. ``clock`` in s."""
        self._clock = clock
        reference.synchronize()
        self._reference, self._reference_s = reference, clock()
        self._lock = threading.Lock()

    def reached_s(self, event: Any) -> tuple[float, Any]:
        """When ``event``, which is complete, was reached; and the CUDA event to use instead of it from now on (mostly itself)."""
        seen_s = self._clock()
        with self._lock:
            elapsed_s = self._reference.elapsed_time(event) / 1e3
            self._reference_s = min(self._reference_s, seen_s - elapsed_s)
            reached_s = self._reference_s + elapsed_s
            if elapsed_s <= REBASE_S:
                return reached_s, event
            spare, self._reference = self._reference, event
            self._reference_s = min(seen_s, reached_s + DRIFT * elapsed_s)
            return reached_s, spare


class CudaEvent:
    """Implements :class:`megatron_energy.gpus.events.Event` on the stream that is current when it is recorded."""

    __slots__ = ("_clock", "_event", "_reached_s")

    def __init__(self, event: Any, clock: GpuClock) -> None:
        self._event, self._clock = event, clock
        self._reached_s = 0.0

    def record(self) -> None:
        """Behind the work enqueued on the current stream."""
        try:
            self._event.record()
        except RuntimeError as error:
            raise GpuError(_first_line(error)) from error

    def synchronize(self) -> None:
        """Sleep until reached; torch lets other Python threads run meanwhile."""
        try:
            self._event.synchronize()
            self._reached_s, self._event = self._clock.reached_s(self._event)
        except RuntimeError as error:
            raise GpuError(_first_line(error)) from error

    def time_s(self) -> float:
        """Host time at which it was reached."""
        return self._reached_s


class CudaEventSource:
    """Implements :class:`megatron_energy.gpus.events.EventSource` for the current CUDA device. Waits for it once, when made."""

    def __init__(self) -> None:
        self._device = torch.cuda.current_device()
        reference = _cuda_event()
        reference.record()
        self._clock = GpuClock(reference)

    def new_event(self) -> CudaEvent:
        """A blocking event with timing: the waiting thread sleeps instead of spinning."""
        return CudaEvent(_cuda_event(), self._clock)

    def bind_thread(self) -> None:
        """A new thread starts on device 0, whatever the main thread uses."""
        try:
            torch.cuda.set_device(self._device)
        except RuntimeError as error:
            raise GpuError(_first_line(error)) from error


def _cuda_event() -> Any:
    return torch.cuda.Event(enable_timing=True, blocking=True)


def _first_line(error: RuntimeError) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


class Holdable(Protocol):
    """What has to rest during graph capture: a clock controller."""

    def hold(self) -> AbstractContextManager[None]:
        """See :meth:`megatron_energy.gpus.controller.ClockController.hold`."""


def hold_during_capture(controller: Holdable, graph_class: Any = None) -> None:
    """Hold ``controller`` from the begin to the end of every CUDA graph capture of this process.

    An event waited for in another thread would invalidate the capture. ``graph_class``: ``torch.cuda.CUDAGraph``.
    """
    graph_class = torch.cuda.CUDAGraph if graph_class is None else graph_class
    begin, end = graph_class.capture_begin, graph_class.capture_end
    holding: list[AbstractContextManager[None]] = []

    @functools.wraps(begin)
    def capture_begin(*args: Any, **kwargs: Any) -> Any:
        hold = controller.hold()
        hold.__enter__()
        holding.append(hold)
        started = False
        try:
            result = begin(*args, **kwargs)
            started = True
            return result
        finally:
            if not started:
                holding.pop().__exit__(None, None, None)

    @functools.wraps(end)
    def capture_end(*args: Any, **kwargs: Any) -> Any:
        try:
            return end(*args, **kwargs)
        finally:
            if holding:
                holding.pop().__exit__(None, None, None)

    replace(graph_class, capture_begin=capture_begin, capture_end=capture_end)
