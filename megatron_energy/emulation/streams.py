"""A GPU's stream of work, emulated in wall time: for running the clock controller on a host without CUDA."""

import time
from collections.abc import Callable


class HostStream:
    """Work is enqueued by its duration and done in order; events complete when the work before them is done.

    Implements :class:`megatron_energy.gpus.events.EventSource`.

    Example::

        stream = HostStream()
        stream.enqueue(0.05)
        event = stream.new_event()
        event.record()
        event.synchronize()         # 50 ms later
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep) -> None:
        """``clock`` and ``sleep`` in s."""
        self.clock, self.sleep = clock, sleep
        self.done_s = clock()  # when all work enqueued so far is done

    def enqueue(self, duration_s: float) -> None:
        """Add work that takes this long."""
        self.done_s = max(self.done_s, self.clock()) + duration_s

    def new_event(self) -> "HostEvent":
        """An event of this stream."""
        return HostEvent(self)

    def bind_thread(self) -> None:
        """A host's threads need no device."""


class HostEvent:
    """Implements :class:`megatron_energy.gpus.events.Event`."""

    def __init__(self, stream: HostStream) -> None:
        self._stream = stream
        self._reached_s = 0.0

    def record(self) -> None:
        """Complete when the work enqueued so far is done."""
        self._reached_s = max(self._stream.done_s, self._stream.clock())

    def synchronize(self) -> None:
        """Sleep until then."""
        while (remaining_s := self._reached_s - self._stream.clock()) > 0:
            self._stream.sleep(remaining_s)

    def time_s(self) -> float:
        """When the work was done."""
        return self._reached_s
