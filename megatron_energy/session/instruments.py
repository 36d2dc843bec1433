"""What watches one GPU during a controlled run: marks in its work, samples of its counter, a trace of its clock calls."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from megatron_energy.gpus.errors import GpuError
from megatron_energy.gpus.events import EventSource
from megatron_energy.gpus.sampler import GpuSampler
from megatron_energy.records.iteration import RankIteration
from megatron_energy.session.clock_trace import ClockTrace, TracedActuator
from megatron_energy.session.clock_watch import ClockWatch
from megatron_energy.session.directive import TransitionPoint
from megatron_energy.session.marks import Mark, Marks, TimedIteration
from megatron_energy.session.rank_records import Observed, Recording

KEPT_S = 2.0
"""Samples and calls older than this before the last record's end are not needed any more."""

RESTING_S = 0.1
"""Distance between two samples where nothing is learned from them: that of a counter that steps every 100 ms, for which the report's
figures are said to be resolved."""

SAMPLES_PER_ITERATION = 10
"""At least, where the counter steps as often."""


@dataclass(slots=True)
class Ended:
    """An iteration that the host is done with; the GPU may not be.

    Attributes:
        number: Megatron's number of it.
        evaluation: whether it is forward-only.
        marks: not read yet.
        host_s: when the host was done.
        timed: what the marks said; None before they are read, and where they failed.
    """

    number: int
    evaluation: bool
    marks: list[Mark]
    host_s: float
    timed: TimedIteration | None = None


class Instruments:
    """Makes records of iterations, some time after they ended.

    Attributes:
        mark: called where a point of Megatron's schedule is being enqueued. Never raises, never waits.

    Args:
        sampler: of the GPU; opened and closed here.
        actuator: through which all clocks are changed.
        events: of the GPU's work.
        recording: whose records they are.
        top_mhz: what the GPU runs at by its own choice.
        in_force_s: from the end of a call until the clock is in force.
        clock: host time in s, monotonic, that of the events too.

    Raises GpuError when no events can be made.
    """

    def __init__(
        self,
        sampler: GpuSampler,
        actuator: TracedActuator,
        events: EventSource,
        recording: Recording,
        top_mhz: int,
        in_force_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sampler, self._actuator, self._recording = sampler, actuator, recording
        self._top_mhz, self._in_force_s, self._clock = top_mhz, in_force_s, clock
        self._marks, self._watch = Marks(events), ClockWatch(top_mhz)
        self._previous_end_s: float | None = None
        self._unread: Ended | None = None
        self._lasted_s = 0.0  # the last iteration whose times are known
        self.mark: Callable[[TransitionPoint], None] = self._marks.mark  # not a method of its own: hooks call it at every point

    @property
    def failed(self) -> str:
        """Why nothing can be recorded any more; empty while all is well."""
        return self._marks.failed

    def end(self, number: int, evaluation: bool) -> Ended:
        """The host is done with an iteration.

        The marks of the one before are read now: the GPU has reached them, as Megatron has waited for a gradient norm since. Even where
        it has not, the GPU has all of this iteration left to do, so it does not run dry while the host waits.
        """
        ended, before = Ended(number, evaluation, self._marks.end(), self._clock()), self._unread
        self._unread = ended
        if before is not None:
            self._read(before)
        return ended

    def _read(self, ended: Ended) -> None:
        marks, ended.marks = ended.marks, []
        try:
            ended.timed = self._marks.times(marks)
        except GpuError as error:
            self._marks.failed = str(error)
            return
        if ended.timed is not None and ended.timed.begin_s is not None:
            self._lasted_s = ended.timed.end_s - ended.timed.begin_s

    def learning(self, learning: bool) -> None:
        """Whether anything is learned from the iteration that comes: then every step of the counter is kept, else as few as will do."""
        self._sampler.rest(0.0 if learning else min(RESTING_S, self._lasted_s / SAMPLES_PER_ITERATION))

    def records(self, ended: list[Ended]) -> list[RankIteration]:
        """Records of iterations, in order; the host has waited for the GPU since the last of them ended."""
        samples = self._sampler.samples()
        seen = Observed(samples, ClockTrace(self._actuator.changes(), samples, self._top_mhz, self._in_force_s))
        records = [self._record(iteration, seen) for iteration in ended]
        timed = [iteration.timed for iteration in ended if iteration.timed is not None]
        busy = [(span.start_s, span.end_s) for times in timed for span in times.spans if span.activity in ("forward", "backward")]
        self._watch.look(seen.trace, samples, busy)
        if self._previous_end_s is not None:
            self._sampler.forget_before(self._previous_end_s - KEPT_S)
            self._actuator.forget_before(self._previous_end_s - KEPT_S)
        return records

    def _record(self, ended: Ended, seen: Observed) -> RankIteration:
        if ended.marks:
            self._read(ended)
        timed, before_s = ended.timed, self._previous_end_s
        if timed is None:  # the host's time is all there is
            self._previous_end_s, epoch_s = ended.host_s, self._recording.epoch_s
            begin_s = ended.host_s if before_s is None else before_s
            return RankIteration(
                self._recording.rank, ended.number, begin_s + epoch_s, ended.host_s + epoch_s, math.nan,
                evaluation=ended.evaluation, emulated=self._recording.emulated,
            )  # fmt: skip
        self._previous_end_s = timed.end_s
        return self._recording.record(ended.number, ended.evaluation, timed, before_s, seen)

    def other_writer(self) -> str:
        """See :meth:`~megatron_energy.session.clock_watch.ClockWatch.found`; of what was recorded so far."""
        return self._watch.found()

    def close(self) -> None:
        """Stop sampling."""
        self._sampler.close()
