"""Marks, spans and records of an iteration; times by hand."""

import math
from collections.abc import Sequence

import pytest

from megatron_energy.gpus.device import EventReason
from megatron_energy.gpus.errors import GpuError
from megatron_energy.gpus.host_events import HostEventSource
from megatron_energy.gpus.sampler import GpuSampler, Sample
from megatron_energy.records.iteration import Span
from megatron_energy.session.clock_trace import Change, ClockTrace, TracedActuator
from megatron_energy.session.directive import ITERATION_BEGIN, TransitionPoint
from megatron_energy.session.instruments import RESTING_S, SAMPLES_PER_ITERATION, Instruments
from megatron_energy.session.marks import ITERATION_END, Marks, TimedIteration, TimedSpan, timed_iteration
from megatron_energy.session.rank_records import Observed, Recording, iteration_begin_s, thinned
from tests.emulated_gpus import FakeClock
from tests.gpus.fake_actuator import FakeActuator
from tests.gpus.fake_gpu import FakeGpu

Timed = Sequence[tuple[TransitionPoint, float]]
WAIT: TransitionPoint = ("wait", -1, -1, "begin")
WAITED: TransitionPoint = ("wait", -1, -1, "end")


def around(kind: str, chunk: int, microbatch: int, start_s: float, end_s: float) -> list[tuple[TransitionPoint, float]]:
    return [((kind, chunk, microbatch, "begin"), start_s), ((kind, chunk, microbatch, "end"), end_s)]


def test_spans_are_what_begins_and_ends() -> None:
    timed = timed_iteration(
        [
            (ITERATION_BEGIN, 1.0),
            *around("forward", 0, 0, 1.0, 1.1),
            (WAIT, 1.1), (WAITED, 1.15),
            *around("backward", 0, 0, 1.15, 1.35),
            *around("grad-sync", -1, -1, 1.35, 1.4),
            *around("optimizer", -1, -1, 1.4, 1.5),
            (ITERATION_END, 1.5),
        ]
    )  # fmt: skip
    assert timed == TimedIteration(
        1.0,
        1.5,
        [
            TimedSpan("forward", 0, 0, 1.0, 1.1),
            TimedSpan("wait", -1, -1, 1.1, 1.15),
            TimedSpan("backward", 0, 0, 1.15, 1.35),
            TimedSpan("grad-sync", -1, -1, 1.35, 1.4),
            TimedSpan("optimizer", -1, -1, 1.4, 1.5),
        ],
    )


def test_a_wait_inside_an_operation_is_part_of_it_and_one_that_never_ends_is_none() -> None:
    inside: Timed = [(("forward", 0, 0, "begin"), 1.0), (WAIT, 1.1), (WAITED, 1.2), (("forward", 0, 0, "end"), 1.3)]
    assert timed_iteration(inside).spans == [TimedSpan("forward", 0, 0, 1.0, 1.3)]
    endless: Timed = [(WAIT, 0.9), *around("forward", 0, 0, 1.0, 1.3)]
    assert timed_iteration(endless).spans == [TimedSpan("forward", 0, 0, 1.0, 1.3)]


class FailingEvents(HostEventSource):
    """Events that fail from some moment on."""

    broken = False

    def new_event(self):
        event, source = super().new_event(), self

        class Event:
            def record(self) -> None:
                if source.broken:
                    raise GpuError("CUDA error: unspecified launch failure")
                event.record()

            synchronize, time_s = event.synchronize, event.time_s

        return Event()


def test_events_that_fail_stop_the_marking_and_nothing_else() -> None:
    events = FailingEvents()
    marks = Marks(events, pool_size=2)
    marks.mark(ITERATION_BEGIN)
    events.broken = True
    for _ in range(3):
        marks.mark(WAIT)
    assert marks.failed == "CUDA error: unspecified launch failure"
    assert marks.times(marks.end()) is None


def test_events_are_used_again() -> None:
    clock = FakeClock()
    made = []

    class Source(HostEventSource):
        def new_event(self):
            made.append(super().new_event())
            return made[-1]

    marks = Marks(Source(clock), pool_size=4)
    for _ in range(10):
        for point, _ in around("forward", 0, 0, 0.0, 0.0):
            marks.mark(point)
            clock.sleep(0.1)
        timed = marks.times(marks.end())
        assert timed is not None and timed.spans[0].end_s - timed.spans[0].start_s == pytest.approx(0.1)
    assert len(made) == 4


@pytest.mark.parametrize(("previous_end_s", "begin_s"), [(None, 10.0), (9.95, 9.95), (9.85, 10.0)])
def test_a_short_time_between_iterations_belongs_to_the_later_one(previous_end_s: float | None, begin_s: float) -> None:
    assert iteration_begin_s(TimedIteration(10.0, 11.0, []), previous_end_s) == begin_s


SAMPLES = [Sample(0.1 * n, 30_000 * n, 1410 if n < 15 else 1200, EventReason.NONE) for n in range(40)]
"""300 W; 1200 MHz from 1.5 s on."""


def test_a_record_is_on_the_jobs_clock_and_its_energy_is_the_counters() -> None:
    trace = ClockTrace([Change(1.4, 1.405, 1200)], SAMPLES, 1410, in_force_s=0.01)
    timed = TimedIteration(1.0, 2.0, [TimedSpan("forward", 0, 0, 1.0, 1.3), TimedSpan("backward", 0, 0, 1.5, 2.0)])
    record = Recording(3, 100.0, emulated=True).record(7, False, timed, None, Observed(SAMPLES, trace))
    assert (record.rank, record.iteration, record.start_s, record.end_s, record.emulated) == (3, 7, 101.0, 102.0, True)
    assert record.energy_j == pytest.approx(300.0)
    assert record.spans == [Span("forward", 0, 0, 101.0, 101.3, 1410), Span("backward", 0, 0, 101.5, 102.0, 1200)]
    assert record.clock_changes == [(101.0, 1410), (pytest.approx(101.5), 1200)]
    assert len(record.energy_samples) == 11 and record.energy_samples[0] == (pytest.approx(101.0), 300_000)
    thin = thinned(record)
    assert (thin.spans, thin.energy_samples, thin.energy_j) == ([], [], record.energy_j)


def test_a_thinned_record_keeps_how_long_it_waited_and_was_held_down() -> None:
    trace = ClockTrace([], [Sample(t.time_s, t.energy_mj, 1300, EventReason.POWER_CAP) for t in SAMPLES], 1410, 0.0)
    timed = TimedIteration(1.0, 2.0, [TimedSpan("wait", -1, -1, 1.0, 1.25), TimedSpan("forward", 0, 0, 1.25, 2.0)])
    record = Recording(0, 0.0, emulated=False).record(1, False, timed, None, Observed(SAMPLES, trace))
    thin = thinned(record)
    assert [(s.activity, s.end_s - s.start_s) for s in thin.spans if s.activity == "wait"] == [("wait", pytest.approx(0.25))]
    assert thin.throttled_s == pytest.approx(record.throttled_s) == pytest.approx(1.0)


def instruments(clock: FakeClock, events: HostEventSource) -> Instruments:
    sampler = GpuSampler(FakeGpu(power_w=100.0), clock)
    return Instruments(sampler, TracedActuator(FakeActuator(), clock), events, Recording(0, 0.0, True), 1410, 0.0, clock)


def test_instruments_record_consecutive_iterations() -> None:
    clock = FakeClock()
    watching = instruments(clock, HostEventSource(clock))
    ended = []
    for number in (1, 2):
        watching.mark(ITERATION_BEGIN)
        clock.sleep(1.0)
        ended.append(watching.end(number, evaluation=number == 2))
        clock.sleep(0.01)
    records = watching.records(ended)
    assert [(r.iteration, r.evaluation) for r in records] == [(1, False), (2, True)]
    assert [(r.start_s, r.end_s) for r in records] == [(1000.0, 1001.0), (1001.0, pytest.approx(1002.01))]


@pytest.mark.parametrize(("lasts_s", "spacing_s"), [(2.0, RESTING_S), (0.5, 0.5 / SAMPLES_PER_ITERATION)])
def test_steps_of_the_counter_are_slept_through_where_nothing_is_learned(lasts_s: float, spacing_s: float) -> None:
    clock = FakeClock()
    watching = instruments(clock, HostEventSource(clock))
    asked_s: list[float] = []
    watching._sampler.rest = asked_s.append  # type: ignore[method-assign]
    watching.learning(False)
    for number in (1, 2):
        watching.mark(ITERATION_BEGIN)
        clock.sleep(lasts_s)
        watching.end(number, False)
    for learning in (False, True):
        watching.learning(learning)
    assert asked_s == [0.0, pytest.approx(spacing_s), 0.0], "how long an iteration takes is not known at first"


def test_without_events_the_hosts_time_is_kept() -> None:
    clock, events = FakeClock(), FailingEvents()
    watching = instruments(clock, events)
    events.broken = True
    clock.sleep(1.0)
    watching.mark(ITERATION_BEGIN)
    records = watching.records([watching.end(1, False), watching.end(2, False)])
    assert watching.failed == "CUDA error: unspecified launch failure"
    assert [(r.end_s, math.isnan(r.energy_j)) for r in records] == [(1001.0, True)] * 2
