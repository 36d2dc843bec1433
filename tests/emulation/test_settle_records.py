"""What the records say: counter samples, spans, conservation of energy, determinism."""

import dataclasses
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_energy.emulation.settle import RequestLatency, Wiring
from megatron_energy.emulation.workload import MeasuredCost, Workload
from megatron_energy.pipeline.build import build_graph
from megatron_energy.pipeline.programs import program
from megatron_energy.pipeline.replay import replay
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.profiles.profile import Curve
from megatron_energy.records.iteration import RankIteration
from megatron_energy.records.steps import ClockRequest, Optimizer, Program
from tests.emulation.settling import BLOCKING_W, FULL, GPU, HALF, NO_LATENCY, Simple, fwd, settler, times, workload
from tests.pipeline.schedules import schedules

ONE = Wiring.grid(1)


def test_the_counter_is_sampled_where_its_sensor_updates():
    assert GPU.counter_update_s == 0.1
    job = settler(workload(f=0.25), ONE)
    [record] = job.settle([[fwd()]], 0)
    # 400 W: 40 J every 0.1 s; the iteration ends at 0.25 s with 100 J used, the counter still shows 80 J.
    assert record.energy_samples == [(0.1, 40_000), (0.2, 80_000)]
    assert record.energy_j == pytest.approx(100)
    assert job.gpus[0].reading_mj == 80_000
    [record] = job.settle([[fwd()]], 1)
    assert [mj for _, mj in record.energy_samples] == [120_000, 160_000, 200_000]
    assert [s for s, _ in record.energy_samples] == pytest.approx([0.3, 0.4, 0.5])


def test_samples_are_whole_millijoules_and_never_ahead_of_the_energy():
    job = settler(workload(f=1 / 3), ONE)
    job.set_clock(0, 1395)
    [record] = job.settle([[fwd(0), fwd(1)]], 0)
    power_mw = 400e3 * 1395 / FULL
    assert record.energy_samples == [(s, math.floor(power_mw * s)) for s, _ in record.energy_samples]
    assert all(isinstance(mj, int) for _, mj in record.energy_samples)


def test_an_iteration_between_two_updates_has_no_sample():
    job = settler(workload(f=0.03), ONE)
    [record] = job.settle([[fwd()]], 0)
    assert record.energy_samples == []
    assert job.gpus[0].reading_mj == 0


def test_fixed_time_steps_of_a_profile_come_first():
    job = workload()
    costs = dict(job.costs) | {(0, -1, "other"): Simple(0.5, 100.0)}
    [record] = settler(Workload(GPU, 1, 1, costs, 0.0, BLOCKING_W), ONE).settle([[fwd()]], 0)
    assert times(record) == [("other", 0, 0.5), ("forward", 0.5, 1.5)]


def test_scaled_energy_scales_everything_and_no_time():
    plain = workload(opt=0.3)
    more = dataclasses.replace(plain, scale_energy=1.05)
    programs = [[fwd(), Optimizer()], [fwd(), fwd(1), Optimizer()]]
    wiring = Wiring.grid(1, data=2)
    before, after = (settler(job, wiring).settle(programs, 0) for job in (plain, more))
    for one, other in zip(before, after, strict=True):
        assert other.energy_j == pytest.approx(1.05 * one.energy_j)
        assert times(other) == times(one)


MODES = ("overlap", "overlap-wait", "batched")


def uneven(schedule: Schedule, transfer_s: float) -> Workload:
    """Times that differ by stage, chunk and direction, so that no two paths are equally long by accident."""
    costs = {}
    for stage in range(schedule.stages):
        for chunk in range(schedule.chunks):
            costs[stage, chunk, "forward"] = Simple(0.0101 + 0.0017 * stage + 0.0023 * chunk)
            costs[stage, chunk, "backward"] = Simple(0.0199 + 0.0013 * stage - 0.0011 * chunk)
        costs[stage, -1, "grad-sync"] = Simple(0.0037, 150.0)
        costs[stage, -1, "optimizer"] = Simple(0.0053, 250.0)
    return Workload(GPU, schedule.stages, schedule.chunks, costs, transfer_s, BLOCKING_W)


def programs_of(schedule: Schedule) -> list[Program]:
    """One program per stage."""
    training = not schedule.forward_only
    return [program(schedule, stage, grad_sync=training, optimizer=training) for stage in range(schedule.stages)]


@settings(deadline=None, max_examples=40)
@given(schedules(MODES), st.sampled_from([0.0, 0.0007]), st.sampled_from([FULL, HALF]))
def test_settling_agrees_with_the_longest_path_of_the_graph(schedule, transfer_s, clock):
    """The simulation executes programs, the planner solves a graph: two ways to the same time, which share no code."""
    job = uneven(schedule, transfer_s)
    run = settler(job, Wiring.grid(schedule.stages))
    for rank in range(schedule.stages):
        run.set_clock(rank, clock)
    records = run.settle(programs_of(schedule), 0)
    training = not schedule.forward_only
    graph = build_graph(schedule, transfer_s=transfer_s, grad_sync=training, optimizer=training)
    durations = [
        0.0 if vertex.kind == "join" else job.point(graph.units[vertex.unit].stage, vertex.chunk, vertex.kind, clock, 1e9).time_s
        for vertex in graph.vertices
    ]
    assert max(record.end_s for record in records) == pytest.approx(replay(graph, np.array(durations)).makespan_s, rel=1e-9)


@settings(deadline=None, max_examples=20)
@given(schedules(MODES), st.sampled_from([FULL, HALF]))
def test_the_counter_moves_by_the_integral_of_the_power(schedule, clock):
    run = settler(uneven(schedule, 0.0004), Wiring.grid(schedule.stages))
    for rank in range(schedule.stages):
        run.set_clock(rank, clock)
    watts = {"forward": 400.0, "backward": 400.0, "optimizer": 250.0, "grad-sync": 150.0}
    for record in run.settle(programs_of(schedule), 0):
        check_spans(record)
        powers = [watts[s.activity] * clock / FULL if s.activity in watts else BLOCKING_W for s in record.spans]
        joules = [power * (s.end_s - s.start_s) for power, s in zip(powers, record.spans, strict=True)]
        assert record.energy_j == pytest.approx(sum(joules))


def with_requests(schedule: Schedule, clocks: list[int]) -> list[Program]:
    """Programs of two tensor-parallel ranks per stage with clock requests strewn in, others on each rank."""
    programs = []
    for rank in range(2 * schedule.stages):
        steps = list(programs_of(schedule)[rank // 2])
        for i, clock in enumerate(clocks):
            steps.insert((i * 7 + rank) % (len(steps) + 1), ClockRequest(clock, delay_s=0.003 * (i % 3)))
        programs.append(steps)
    return programs


@settings(deadline=None, max_examples=25)
@given(schedules(MODES), st.lists(st.sampled_from([0, 210, 600, 705, 1080, 1395]), max_size=8), st.booleans())
def test_iterations_join_without_loss_and_runs_repeat(schedule, clocks, latency):
    programs = with_requests(schedule, clocks)

    def run():
        wiring = Wiring.grid(schedule.stages, tensor=2, gpus_per_node=4)
        job = settler(uneven(schedule, 0.0004), wiring, RequestLatency(0.002, 0.003, 0.004) if latency else NO_LATENCY)
        return job, [job.settle(programs, i) for i in range(3)]

    job, iterations = run()
    assert iterations == run()[1]
    for rank, gpu in enumerate(job.gpus):
        records = [iteration[rank] for iteration in iterations]
        assert records[0].start_s == 0
        assert [before.end_s for before in records[:-1]] == [after.start_s for after in records[1:]]
        assert sum(record.energy_j for record in records) == pytest.approx(gpu.energy_mj / 1e3)
        assert sum(record.requests for record in records) == 3 * len(clocks)
        samples = [sample for record in records for sample in record.energy_samples]
        assert [s for s, _ in samples] == pytest.approx([(i + 1) * GPU.counter_update_s for i in range(len(samples))])
        assert gpu.reading_mj <= gpu.energy_mj < gpu.reading_mj + 1 + GPU.counter_update_s * 400e3
        for record in records:
            check_spans(record)


def check_spans(record: RankIteration) -> None:
    """Spans are in order and leave no gap; clocks are between those in force; clock changes and samples rise in time."""
    assert record.spans[0].start_s == record.start_s
    assert record.spans[-1].end_s == record.end_s
    for before, after in pairwise(record.spans):
        assert before.end_s == after.start_s
        assert not before.activity == after.activity == "wait"
    in_force = [mhz for _, mhz in record.clock_changes]
    for span in record.spans:
        assert min(in_force) - 1e-6 <= span.clock_mhz <= max(in_force) + 1e-6
    changes = [s for s, _ in record.clock_changes]
    assert changes == sorted(changes)
    samples = [mj for _, mj in record.energy_samples]
    assert samples == sorted(samples)


def test_a_measured_profile_is_not_throttled_again():
    curve = Curve(np.array([FULL, HALF]), np.array([1.0, 2.0]), np.array([475.0, 300.0]))
    job = Workload(GPU, 1, 1, {(0, 0, "forward"): MeasuredCost((curve,))}, 0.0, BLOCKING_W)
    [record] = settler(job, ONE, limit_w=GPU.power_limit_default_w).settle([[fwd()]], 0)
    assert record.energy_j == pytest.approx(475)
    assert not record.spans[0].throttled
