"""Plans with clocks per GPU against what settling counts when GPUs are slower than their fellows: two programs that share no code."""

import dataclasses

import numpy as np
import pytest

from megatron_energy.emulation.catalog import load
from megatron_energy.emulation.costs import Sizes
from megatron_energy.emulation.settle import RequestLatency, Settler, Wiring
from megatron_energy.emulation.workload import Workload
from megatron_energy.parallel.layout import Layout
from megatron_energy.pipeline.programs import program
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.planning.assemble import Purpose
from megatron_energy.planning.job_plan import plan_job
from megatron_energy.planning.job_setup import job_problem
from megatron_energy.profiles.profile import Curve, Profile
from megatron_energy.profiles.ranks import RankProfiles
from megatron_energy.session.planned import PlannedRun
from tests.session.simulated import with_requests

GPU = load("a100-sxm4-80gb")
CLOCKS_MHZ = tuple(range(1410, 900, -60))
SCHEDULE = Schedule(4, 4, 2, p2p="overlap")


def profile_of(workload):
    """What the workload takes and uses at every clock: what a sweep would measure."""
    curves = {}
    for stage, chunk, kind in workload.costs:
        points = [workload.point(stage, chunk, kind, mhz, GPU.power_limit_default_w) for mhz in CLOCKS_MHZ]
        time_s = np.array([point.time_s for point in points])
        curves[stage, chunk, kind] = Curve(np.array(CLOCKS_MHZ), time_s, time_s * np.array([point.power_w for point in points]))
    curves[0, -1, "p2p"] = Curve(np.array([0]), np.array([workload.transfer_s]), np.zeros(1))
    return Profile(curves, workload.blocking_power_w(0, CLOCKS_MHZ[0]))


def planned_and_counted(layout, wiring, slower):
    """(plan, seconds and joules of a settled iteration under the plan)."""
    sizes = Sizes(stages=4, chunks=2, tensor=layout.tensor, data=layout.data)
    workload = Workload.from_model(GPU, "gpt3-13b", sizes, micro_batch=4)
    ranks = RankProfiles.alike(profile_of(workload), layout.world_size, slower)
    job = job_problem(SCHEDULE, layout, ranks, workload.blocking_power_w(0, 1410))
    named = {name: getattr(layout, name) for name in ("tensor", "context", "expert", "data", "pipeline")}
    plan = plan_job(job, Purpose(named, SCHEDULE, "segments", 6))
    stages = [layout.coordinates(rank).pp for rank in range(layout.world_size)]
    settler = Settler(workload, wiring, RequestLatency())
    for rank, factor in slower.items():
        settler.set_stretch(rank, factor)
    run = PlannedRun(plan, stages)
    programs = [program(SCHEDULE, stage, grad_sync=True, optimizer=True) for stage in stages]
    for iteration, directives in enumerate((run.activation, run.directive, run.directive)):
        records = settler.settle([with_requests(p, directives(rank)) for rank, p in enumerate(programs)], iteration)
    return plan, max(r.end_s for r in records) - max(r.start_s for r in records), sum(r.energy_j for r in records)


def check(layout, wiring, slower, expected_ranks):
    plan, time_s, energy_j = planned_and_counted(layout, wiring, slower)
    assert [u.ranks for u in plan.units] == expected_ranks
    assert plan.expected.slowdown_percent <= 0
    assert plan.expected.saved_percent > 5
    assert time_s == pytest.approx(plan.expected.iteration_s, rel=5e-4)
    assert energy_j == pytest.approx(plan.expected.energy_j, rel=3e-3)


def test_a_slow_gpu_in_a_tensor_group():
    check(Layout(tensor=4, pipeline=4), Wiring.grid(4, tensor=4), {5: 1.05}, ["0-3", "4,6-7", "5", "8-11", "12-15"])


def test_a_slow_replica():
    slower = dict.fromkeys((1, 3, 5, 7), 1.1)
    check(Layout(data=2, pipeline=4), Wiring.grid(4, data=2), slower, ["0", "1", "2", "3", "4", "5", "6", "7"])


def test_a_slow_gpu_in_replicas_that_experts_join():
    joined = dataclasses.replace(Wiring.grid(4, data=2), lock_step=[(rank, rank + 1) for rank in range(0, 8, 2)])
    check(Layout(data=2, expert=2, pipeline=4), joined, {3: 1.1}, ["0-1", "2", "3", "4-5", "6-7"])
