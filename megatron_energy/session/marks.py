"""When the GPU reached the points of an iteration: an event at each, read only after the iteration is over.

Recording an event costs a microsecond and waits for nothing. Times are read when Megatron itself has waited for the GPU since,
so that no synchronisation is added.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from megatron_energy.gpus.errors import GpuError
from megatron_energy.gpus.events import Event, EventPool, EventSource
from megatron_energy.records.iteration import Activity
from megatron_energy.session.directive import ITERATION_BEGIN, TransitionPoint

ITERATION_END: TransitionPoint = ("iteration", -1, -1, "end")

_ACTIVITIES: dict[str, Activity] = {
    "forward": "forward",
    "backward": "backward",
    "wait": "wait",
    "grad-sync": "grad-sync",
    "optimizer": "optimizer",
}


Mark: TypeAlias = tuple[TransitionPoint, Event]
"""A point and the event recorded there."""


class TimedSpan(NamedTuple):
    """One stretch of the GPU's time line, without its clock. Times in s, host, monotonic."""

    activity: Activity
    chunk: int
    microbatch: int
    start_s: float
    end_s: float


class TimedIteration(NamedTuple):
    """Begin and end of an iteration and what lies between, in s. ``begin_s`` None: it was not seen."""

    begin_s: float | None
    end_s: float
    spans: list[TimedSpan]


class Marks:
    """The marks of the iteration that is running.

    Attributes:
        failed: why nothing is marked any more; empty while all is well.
    """

    def __init__(self, events: EventSource, pool_size: int = 256) -> None:
        """``events``: of this process's GPU. Raises GpuError."""
        self.failed = ""
        self._pool = EventPool(events, pool_size)
        self._marks: list[Mark] = []

    def mark(self, point: TransitionPoint) -> None:
        """A point of the schedule is being enqueued. Never raises."""
        if self.failed:
            return
        try:
            event = self._pool.take()
            event.record()
        except GpuError as error:
            self.failed = str(error)
            return
        self._marks.append((point, event))

    def end(self) -> list[Mark]:
        """The iteration is over, as far as the host is concerned: its marks, the last of them its end."""
        self.mark(ITERATION_END)
        marks, self._marks = self._marks, []
        return marks

    def times(self, marks: Sequence[Mark]) -> TimedIteration | None:
        """When the GPU got there; None of no marks. Returns at once where the host has waited for the GPU since. Raises GpuError."""
        if self.failed or not marks:
            return None
        timed = []
        for point, event in marks:
            event.synchronize()
            timed.append((point, event.time_s()))
            self._pool.give(event)
        return timed_iteration(timed)


def timed_iteration(timed: Sequence[tuple[TransitionPoint, float]]) -> TimedIteration:
    """Spans from begins and ends in order. What begins inside an operation, such as a wait, is part of it."""
    spans: list[TimedSpan] = []
    begin_s: float | None = None
    running: tuple[TransitionPoint, float] | None = None
    for point, time_s in timed:
        kind, chunk, microbatch, edge = point
        if kind not in _ACTIVITIES:
            begin_s = time_s if point == ITERATION_BEGIN and begin_s is None else begin_s
        elif edge == "begin":
            running = running if running is not None and running[0][0] != "wait" else (point, time_s)
        elif running is not None and running[0][:3] == point[:3]:
            spans.append(TimedSpan(_ACTIVITIES[kind], chunk, microbatch, running[1], time_s))
            running = None
    return TimedIteration(begin_s, timed[-1][1], spans)
