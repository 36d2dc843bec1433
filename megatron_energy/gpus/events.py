"""Marks in a GPU's stream of work, and a pool of them.

A clock request must follow the GPU, not the host, which runs ahead. So the hook records an event when it enqueues the work, and
the controller's thread waits for it. Events are only ever waited for, never asked whether they are complete: asking holds
Python's lock, and from another thread it invalidates a CUDA graph that is being captured.
"""

from collections import deque
from typing import Protocol


class Event(Protocol):
    """A mark that completes when the GPU reaches it. It may be recorded again once it was waited for."""

    def record(self) -> None:
        """Put the mark behind the work enqueued so far. A few microseconds, never blocks. Raises GpuError."""

    def synchronize(self) -> None:
        """Sleep, without Python's lock, until the mark is reached. Raises GpuError."""

    def time_s(self) -> float:
        """When the mark was reached, on the host's monotonic clock. Only after :meth:`synchronize`."""


class EventSource(Protocol):
    """Makes events of one GPU."""

    def new_event(self) -> Event:
        """An event that was not recorded yet. Raises GpuError."""

    def bind_thread(self) -> None:
        """Make the GPU the calling thread's: called first in the thread that waits. Raises GpuError."""


class EventPool:
    """Events for reuse. Taking and giving are atomic, so that a hook takes what the controller's thread gives back."""

    def __init__(self, source: EventSource, size: int = 64) -> None:
        """``size`` events are made in advance; more are made when more are outstanding."""
        self._source = source
        self._free = deque(source.new_event() for _ in range(size))

    def take(self) -> Event:
        """An event that nobody waits for."""
        try:
            return self._free.popleft()
        except IndexError:
            return self._source.new_event()

    def give(self, event: Event) -> None:
        """Return an event that was waited for."""
        self._free.append(event)
