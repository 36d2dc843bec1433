"""From marks, samples and clock calls to the record of an iteration of one rank on a GPU."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from megatron_energy.gpus.sampler import Sample, energy_j
from megatron_energy.records.iteration import RankIteration, Span
from megatron_energy.session.clock_trace import ClockTrace
from megatron_energy.session.marks import TimedIteration

PAUSE = 0.1
"""Time between two iterations belongs to the later one (gradients are zeroed, a batch is fetched), unless it is longer than this share
of it: then something else was done, such as an evaluation or a checkpoint."""


@dataclass(frozen=True)
class Observed:
    """What was seen of a GPU while some iterations ran: its samples and clocks, in host time (s, monotonic)."""

    samples: Sequence[Sample]
    trace: ClockTrace


@dataclass(frozen=True)
class Recording:
    """How this rank's records are made.

    Attributes:
        rank: global rank.
        epoch_s: added to host times, so that records of all ranks are on one clock (as far as their hosts' are).
        emulated: whether the GPU is emulated.
    """

    rank: int
    epoch_s: float
    emulated: bool

    def record(self, number: int, evaluation: bool, timed: TimedIteration, previous_end_s: float | None, seen: Observed) -> RankIteration:
        """One iteration.

        Args:
            number: Megatron's number of it.
            evaluation: whether it is forward-only.
            timed: when the GPU got where.
            previous_end_s: end of the iteration before; None: there was none, or something else came between.
            seen: covers the iteration.
        """
        begin_s = iteration_begin_s(timed, previous_end_s)
        return RankIteration(
            self.rank,
            number,
            begin_s + self.epoch_s,
            timed.end_s + self.epoch_s,
            energy_j(seen.samples, begin_s, timed.end_s),
            self._spans(timed, seen.trace),
            self._clocks(begin_s, timed.end_s, seen.samples),
            self._steps(begin_s, timed.end_s, seen.samples),
            evaluation=evaluation,
            emulated=self.emulated,
        )

    def _spans(self, timed: TimedIteration, trace: ClockTrace) -> list[Span]:
        spans = []
        for activity, chunk, microbatch, start_s, end_s in timed.spans:
            clock = trace.during(start_s, end_s)
            spans.append(
                Span(
                    activity,
                    chunk,
                    microbatch,
                    start_s + self.epoch_s,
                    end_s + self.epoch_s,
                    clock.clock_mhz,
                    clock.steady,
                    clock.throttled,
                )
            )
        return spans

    def _clocks(self, begin_s: float, end_s: float, samples: Sequence[Sample]) -> list[tuple[float, int]]:
        """The clock as seen: from the last sample before the begin on."""
        known = [sample for sample in samples if sample.energy_mj is not None]
        first = bisect_right(known, begin_s, key=lambda sample: sample.time_s)
        inside = known[first : bisect_left(known, end_s, key=lambda sample: sample.time_s)]
        at_begin = known[max(first - 1, 0) : max(first, 1)]
        seen = [(max(sample.time_s, begin_s), sample.clock_mhz) for sample in (*at_begin, *inside)]
        if seen:
            seen[0] = (begin_s, seen[0][1])
        return [(time_s + self.epoch_s, mhz) for i, (time_s, mhz) in enumerate(seen) if i == 0 or mhz != seen[i - 1][1]]

    def _steps(self, begin_s: float, end_s: float, samples: Sequence[Sample]) -> list[tuple[float, int]]:
        """The counter's steps within the iteration; none where a gap is among them, as what lies across it is not known."""
        first = bisect_left(samples, begin_s, key=lambda sample: sample.time_s)
        inside = samples[first : bisect_right(samples, end_s, key=lambda sample: sample.time_s)]
        steps = [(sample.time_s + self.epoch_s, sample.energy_mj) for sample in inside if sample.energy_mj is not None]
        return steps if len(steps) == len(inside) else []


def iteration_begin_s(timed: TimedIteration, previous_end_s: float | None) -> float:
    """When an iteration began: at the end of the one before where that was just before, else at its first operation."""
    if timed.begin_s is None:
        return previous_end_s if previous_end_s is not None else timed.end_s
    if previous_end_s is None or timed.begin_s - previous_end_s > PAUSE * (timed.end_s - timed.begin_s):
        return timed.begin_s
    return previous_end_s


def thinned(record: RankIteration) -> RankIteration:
    """A record without what only learning and drawing need: its spans become two, the time that it waited and was held down.

    Of a hundred iterations between two log intervals, the home rank gets a few in full and the others so.
    """
    waiting_s = sum(span.end_s - span.start_s for span in record.spans if span.activity == "wait")
    held_s, spans = record.throttled_s, []
    if waiting_s > 0:
        spans.append(Span("wait", -1, -1, record.start_s, record.start_s + waiting_s, record.mean_clock_mhz))
    if held_s > 0:
        spans.append(Span("other", -1, -1, record.end_s - held_s, record.end_s, record.mean_clock_mhz, throttled=True))
    return replace(record, spans=spans, energy_samples=[])
