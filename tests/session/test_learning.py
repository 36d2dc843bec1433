"""The learner finds the times and powers that the emulation works with, from records alone."""

import numpy as np
import pytest

from megatron_energy.emulation.catalog import load
from megatron_energy.emulation.costs import Sizes
from megatron_energy.emulation.settle import RequestLatency, Settler, Wiring
from megatron_energy.emulation.workload import Workload
from megatron_energy.pipeline.programs import program
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.records.iteration import RankIteration, Span
from megatron_energy.records.steps import ClockRequest
from megatron_energy.session.learning import LearningError, learn_profile, measure, steady_spans, transfer_time_s

SCHEDULE = Schedule(stages=4, microbatches=8, chunks=2)
GPU = load("a100-sxm4-80gb")


def job(latency: RequestLatency | None = None) -> Settler:
    workload = Workload.from_model(GPU, "gpt3-13b", Sizes(stages=4, chunks=2, tensor=2, data=2), micro_batch=4)
    return Settler(workload, Wiring.grid(stages=4, tensor=2, data=2), latency)


def programs(clock_mhz: int | None = None):
    stages = [program(SCHEDULE, stage, grad_sync=True, optimizer=True) for stage in range(4)]
    head = [] if clock_mhz is None else [ClockRequest(clock_mhz)]
    return [head + stages[rank // 4] for rank in range(16)]


@pytest.mark.parametrize("latency", [RequestLatency(), None], ids=["zero latency", "catalog latency"])
def test_learned_profile_is_the_workload(latency):
    settler = job(latency)
    baseline = settler.settle(programs(), 1)
    clocks = (1410, 1200, 990)
    sweep = {clock: [settler.settle(programs(clock), 1), settler.settle(programs(clock), 2)] for clock in clocks}
    profile = learn_profile(sweep, settler.wiring.stage, transfer_time_s(baseline), {})
    assert profile.blocking_power_w == pytest.approx(GPU.blocking_power_w, rel=2e-3)
    for stage in range(4):
        for kind, chunk in [("forward", 0), ("forward", 1), ("backward", 0), ("backward", 1), ("optimizer", -1), ("grad-sync", -1)]:
            curve = profile.curves[stage, chunk, kind]
            assert list(curve.clock_mhz) == list(clocks)
            points = [settler.workload.point(stage, chunk, kind, clock, GPU.power_limit_default_w) for clock in clocks]
            assert np.allclose(curve.time_s, [p.time_s for p in points], rtol=1e-6)
            if kind in ("forward", "backward"):
                assert np.allclose(curve.energy_j, [p.time_s * p.power_w for p in points], rtol=3e-3), (stage, kind, chunk)


def test_transfer_time_is_the_workloads():
    settler = job()
    assert transfer_time_s(settler.settle(programs(), 1)) == pytest.approx(settler.workload.transfer_s, rel=1e-6)


def record(spans: list[Span], samples: list[tuple[float, int]]) -> RankIteration:
    return RankIteration(0, 1, spans[0].start_s, spans[-1].end_s, 0.0, spans, energy_samples=samples)


def test_powers_solved_by_hand():
    # 300 W forward for 1 s, 100 W waiting for 1 s, 300 W forward for 2 s; the counter is read at 0.5, 1.5, 2.5 s
    spans = [Span("forward", 0, 0, 0, 1, 1410), Span("wait", -1, -1, 1, 2, 1410), Span("forward", 0, 1, 2, 4, 1410)]
    samples = [(0.5, 150_000), (1.5, 350_000), (2.5, 550_000), (3.5, 850_000)]
    found = measure([[record(spans, samples)]], 1410)
    assert found["forward", 0].power_w == pytest.approx(300)
    assert found["wait", -1].power_w == pytest.approx(100)
    assert found["forward", 0].time_s == pytest.approx(1.5)  # median of 1 and 2


def test_what_runs_between_two_iterations_is_not_taken_for_idling():
    # 300 W forward for 1 s, 80 W idle for 1 s, 100 W waiting for 1 s; then an evaluation of 3 s at 500 W; then a forward again
    first = record(
        [Span("forward", 0, 0, 0, 1, 1410), Span("wait", -1, -1, 2, 3, 1410)], [(0, 0), (0.5, 150_000), (1.5, 340_000), (2.5, 430_000)]
    )
    second = record([Span("forward", 0, 0, 6, 7, 1410)], [(6.5, 2_130_000), (7, 2_280_000)])
    found = measure([[first, second]], 1410)
    assert found["forward", 0].power_w == pytest.approx(300)
    assert found["wait", -1].power_w == pytest.approx(100)


def test_spans_before_the_clock_was_in_force_are_left_out():
    spans = [Span("forward", 0, 0, 0, 1, 1300, steady_clock=False), Span("forward", 0, 1, 1, 2, 1200), Span("backward", 0, 0, 2, 3, 1200)]
    assert steady_spans([record(spans, [])], 1200) == spans[1:]


def test_a_throttled_span_counts_as_the_request():
    spans = [Span("forward", 0, 0, 0, 1, 1350, throttled=True)]
    assert steady_spans([record(spans, [])], 1410) == spans


def test_iterations_shorter_than_the_counters_step_are_refused():
    spans = [Span("forward", 0, 0, 0, 0.01, 1410)]
    with pytest.raises(LearningError, match="counter did not advance"):
        learn_profile({1410: [[record(spans, [])]]}, [0], 0.0, {})


def test_an_operation_missing_at_a_clock_is_named():
    spans = [Span("forward", 0, 0, 0, 1, 1410), Span("backward", 0, 0, 1, 2, 1410)]
    samples = [(0.0, 0), (0.5, 100_000), (1.5, 300_000), (2.0, 400_000)]
    late = [Span("forward", 0, 0, 0, 1, 1300, steady_clock=False), Span("backward", 0, 0, 1, 2, 1200)]
    with pytest.raises(LearningError, match=r"no clean forward of stage 0 at \[1200\] MHz"):
        learn_profile({1410: [[record(spans, samples)]], 1200: [[record(late, samples)]]}, [0], 0.0, {})


def test_a_short_step_that_always_shares_its_window_is_given_the_power_of_waiting():
    # forward 300 W, waiting 100 W; grad-sync 0.01 s and optimizer 0.02 s are always between the same two readings, 1 J and 5 J
    spans, samples, begin_s, counter_mj = [], [(0.0, 0)], 0.0, 0
    for _ in range(4):
        forward = Span("forward", 0, 0, begin_s, begin_s + 1, 1410)
        wait = Span("wait", -1, -1, begin_s + 1, begin_s + 2, 1410)
        sync = Span("grad-sync", -1, -1, begin_s + 2, begin_s + 2.01, 1410)
        step = Span("optimizer", -1, -1, begin_s + 2.01, begin_s + 2.03, 1410)
        spans += [forward, wait, sync, step]
        for at_s, joules in ((1.0, 300), (1.5, 50), (2.03, 50 + 6)):
            counter_mj += 1000 * joules
            samples.append((begin_s + at_s, counter_mj))
        begin_s += 2.03
    found = measure([[record(spans, samples)]], 1410)
    assert found["wait", -1].power_w == pytest.approx(100)
    assert found["grad-sync", -1].power_w == pytest.approx(100)
    assert found["optimizer", -1].power_w == pytest.approx((6 - 1) / 0.02)
    assert found["forward", 0].power_w == pytest.approx(300)


def test_no_step_of_a_run_is_without_energy():
    settler = job(RequestLatency())
    clocks = (1410, 1200)
    sweep = {clock: [settler.settle(programs(clock), 1), settler.settle(programs(clock), 2)] for clock in clocks}
    profile = learn_profile(sweep, settler.wiring.stage, 0.0, {})
    for (stage, chunk, kind), curve in profile.curves.items():
        true_w = [settler.workload.point(stage, chunk, kind, clock, GPU.power_limit_default_w).power_w for clock in clocks]
        assert np.allclose(curve.energy_j / curve.time_s, true_w, rtol=0.4), (stage, chunk, kind)
        assert np.all(curve.energy_j >= 0.99 * GPU.blocking_power_w * curve.time_s)


def ranks_of_a_stage(*optimizer_s: tuple[float, ...]) -> list[list[RankIteration]]:
    """Per rank, one iteration with an optimizer step of each length, and a forward of ten times its length before it, all at 200 W."""
    ranks = []
    for lengths in optimizer_s:
        spans: list[Span] = []
        for length_s in lengths:
            begin_s = spans[-1].end_s if spans else 0.0
            middle_s = begin_s + 10 * length_s
            spans += [Span("forward", 0, 0, begin_s, middle_s, 1410), Span("optimizer", -1, -1, middle_s, middle_s + length_s, 1410)]
        times = sorted({0.0, *(span.end_s for span in spans)})
        ranks.append([record(spans, [(at_s, round(200_000 * at_s)) for at_s in times])])
    return ranks


def test_a_collective_takes_as_long_as_on_the_rank_that_came_last():
    """The others' spans contain the wait for it; an operation, in contrast, takes as long as on the slowest rank."""
    found = measure(ranks_of_a_stage((3.0, 5.0, 4.0), (2.0, 6.0, 7.0)), 1410)
    assert found["optimizer", -1].time_s == 2.0
    assert found["forward", 0].time_s == 60.0  # medians 40 and 60 s
    assert found["optimizer", -1].samples == 6


def test_blocking_power_is_the_median_over_stages_and_clocks():
    def waiting(watts: float, clock_mhz: int) -> RankIteration:
        spans = [Span("forward", 0, 0, 0, 1, clock_mhz), Span("wait", -1, -1, 1, 2, clock_mhz)]
        return record(spans, [(0.0, 0), (1.0, 300_000), (2.0, round(1000 * (300 + watts)))])

    sweep = {
        1410: [[waiting(80, 1410), waiting(81, 1410), waiting(200, 1410)]],
        1200: [[waiting(82, 1200), waiting(83, 1200), waiting(84, 1200)]],
    }
    assert learn_profile(sweep, [0, 1, 2], 0.0, {}).blocking_power_w == pytest.approx(82.5)
