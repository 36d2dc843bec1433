"""Marks where the host computes by itself: they are reached the moment they are recorded.

On a host without CUDA, Megatron's operations run in the thread that the hooks run in, so a controller and a time line work with
these as they do with CUDA events.
"""

import time
from collections.abc import Callable


class HostEvent:
    """Implements :class:`megatron_energy.gpus.events.Event`."""

    __slots__ = ("_clock", "_reached_s")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reached_s = 0.0

    def record(self) -> None:
        """Reached now."""
        self._reached_s = self._clock()

    def synchronize(self) -> None:
        """There is nothing to wait for."""

    def time_s(self) -> float:
        """When it was recorded."""
        return self._reached_s


class HostEventSource:
    """Implements :class:`megatron_energy.gpus.events.EventSource`. ``clock``: seconds, monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock

    def new_event(self) -> HostEvent:
        """An event that was not recorded yet."""
        return HostEvent(self._clock)

    def bind_thread(self) -> None:
        """Threads of a host need no binding."""
