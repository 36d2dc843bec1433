"""Plans for jobs whose GPUs differ."""

import dataclasses
import json

import numpy as np
import pytest

from megatron_energy.errors import UserError
from megatron_energy.parallel.layout import Layout
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.planning.bound import bound
from megatron_energy.planning.job_plan import plan_job
from megatron_energy.planning.job_setup import job_problem
from megatron_energy.planning.plan_file import load_plan
from megatron_energy.planning.policies import solve
from megatron_energy.profiles.ranks import RankProfiles
from tests.planning.jobs import BLOCKING_W, job_of, purpose_of
from tests.planning.problems import curve, problem_of, profile_of

CLOCKS_MHZ = (1400, 1325, 1250, 1175, 1100, 1025, 950)
PROFILE = profile_of([1.0, 1.1], CLOCKS_MHZ)


def planned(schedule, layout, job, **settings):
    return plan_job(job, purpose_of(schedule, layout, **settings))


def bound_percent(problem):
    return problem.saved_percent(bound(problem).energy_j)


def test_like_gpus_give_the_problem_of_one_pipeline():
    _, _, job = job_of(PROFILE, tensor=2, data=3, pipeline=2)
    single = problem_of(PROFILE, 4)
    assert job.problem.baseline_s == single.baseline_s
    assert job.problem.baseline_energy_j == pytest.approx(6 * single.baseline_energy_j)
    assert bound_percent(job.problem) == pytest.approx(bound_percent(single))
    assert (job.problem.tables.clock_mhz == single.tables.clock_mhz).all()


def test_ten_thousand_like_gpus_are_one_pipeline_in_work_and_in_the_file(tmp_path):
    schedule, layout, job = job_of(PROFILE, tensor=8, data=625, pipeline=2)
    plan = planned(schedule, layout, job, max_switches=2)
    plan.save(tmp_path / "plan.json")
    assert len(job.problem.graph.units) == len(plan.units) == 2
    assert plan.gpus == 10_000
    assert len((tmp_path / "plan.json").read_text()) < 4000
    baseline_j = 5000 * problem_of(PROFILE, 4).baseline_energy_j
    assert plan.expected.energy_j == pytest.approx(baseline_j * (1 - plan.expected.saved_percent / 100))


def test_one_slow_gpu_lets_its_group_slow_down():
    """Its fellows keep its pace at a lower clock, and cost less than all at one clock does."""
    schedule, layout, job = job_of(PROFILE, slower={1: 1.15}, tensor=4, pipeline=2)
    plan = planned(schedule, layout, job)
    assert [u.ranks for u in plan.units] == ["0,2-3", "1", "4-7"]
    fellow, slow = plan.unit(0, 0), plan.unit(0, 1)
    assert max(s.clock_mhz for s in fellow.segments) < max(s.clock_mhz for s in slow.segments)
    assert plan.expected.slowdown_percent <= 0
    _, _, alike = job_of(PROFILE, slower={1: 1.15}, tensor=4, pipeline=2)
    clocks = np.zeros(len(alike.problem.graph.vertices), dtype=np.int64)
    assert alike.evaluate(clocks).energy_j == pytest.approx(plan.expected.baseline_energy_j)


def test_the_same_clock_for_all_is_a_special_case():
    """A plan that ignores differences costs at least what its replacement by joint columns costs."""
    _, _, job = job_of(PROFILE, slower={1: 1.15, 3: 1.05}, tensor=4, pipeline=2)
    rng = np.random.default_rng(0)
    for _ in range(5):
        clocks = rng.integers(0, len(CLOCKS_MHZ), len(job.problem.graph.vertices))
        same, better = job.evaluate(clocks), job.problem.evaluate(job.joint(clocks))
        assert better.energy_j <= same.energy_j * (1 + 1e-12)
        assert better.iteration_s <= same.iteration_s * (1 + 1e-12)


def test_joint_columns_evaluate_as_the_clocks_that_they_stand_for():
    _, _, job = job_of(PROFILE, slower={1: 1.15, 2: 1.1, 6: 1.05}, tensor=2, data=2, pipeline=2)
    rng = np.random.default_rng(1)
    for _ in range(5):
        joint = rng.integers(0, job.problem.tables.time_s.shape[1], len(job.problem.graph.vertices))
        assert dataclasses.astuple(job.evaluate(job.clocks(joint))) == pytest.approx(dataclasses.astuple(job.problem.evaluate(joint)))


def test_a_slow_replica_is_the_deadline_of_the_others():
    """Only the fast replica can save more than it could alone; the slow one is planned as if it were alone."""
    schedule, layout, job = job_of(PROFILE, slower={1: 1.2, 3: 1.2}, data=2, pipeline=2)
    assert [c.replicas for c in job.classes] == [1, 1]
    alone = problem_of(PROFILE, 4, straggler=1.2)
    slow = problem_of(profile_of([1.2, 1.32], CLOCKS_MHZ), 4)
    energy_j = bound(alone).energy_j + bound(slow).energy_j
    assert bound(job.problem).energy_j == pytest.approx(energy_j)
    plan = planned(schedule, layout, job)
    assert [u.ranks for u in plan.units] == ["0", "1", "2", "3"]
    assert plan.expected.iteration_s == pytest.approx(1.2 * alone.baseline_s)


def test_replicas_joined_by_experts_keep_one_pace():
    """Joined, nobody can be late alone: both replicas' units take as long as the slow GPU, operation by operation."""
    _, _, joined = job_of(PROFILE, slower={1: 1.2}, expert=2, data=2, pipeline=2)
    _, _, apart = job_of(PROFILE, slower={1: 1.2}, data=2, pipeline=2)
    _, _, group = job_of(PROFILE, slower={1: 1.2}, tensor=2, pipeline=2)
    assert len(joined.problem.graph.units) == 2
    assert len(apart.problem.graph.units) == 4
    assert bound_percent(joined.problem) == pytest.approx(bound_percent(group.problem))
    assert bound_percent(apart.problem) > bound_percent(joined.problem)


def test_grad_sync_and_optimizer_wait_for_all_replicas():
    steps = {"grad-sync": 0.5, "optimizer": 0.2}
    clocked = {(stage, -1, name): curve(length_s, CLOCKS_MHZ) for stage in (0, 1) for name, length_s in steps.items()}
    profile = dataclasses.replace(PROFILE, curves=PROFILE.curves | clocked)
    schedule, layout, job = job_of(profile, slower={1: 1.1}, data=2, pipeline=2)
    plan = planned(schedule, layout, job)
    assert plan.expected.slowdown_percent <= 0
    assert job.evaluate(job.planned_clocks(plan)).iteration_s == pytest.approx(plan.expected.iteration_s)


def test_a_saved_plan_gives_the_same_figures(tmp_path):
    schedule, layout, job = job_of(PROFILE, slower={1: 1.15, 6: 1.05}, chunks=2, p2p="overlap", tensor=2, data=2, pipeline=2)
    plan = planned(schedule, layout, job, max_switches=4)
    plan.save(tmp_path / "plan.json")
    found = job.evaluate(job.planned_clocks(load_plan(tmp_path / "plan.json")))
    assert found.energy_j == pytest.approx(plan.expected.energy_j)
    assert found.iteration_s == pytest.approx(plan.expected.iteration_s)
    assert plan.switches_max <= 4
    gpus = [plan.gpus_of(u) for u in plan.units]
    assert sum(gpus) == 8
    assert plan.switches_mean == pytest.approx(sum(u.switches * n for u, n in zip(plan.units, gpus, strict=True)) / 8)


def test_a_plan_that_ignores_differences_is_a_start_to_be_no_worse_than():
    schedule, layout, job = job_of(PROFILE, slower={1: 1.15}, tensor=2, pipeline=2)
    merged = RankProfiles.alike(PROFILE, 4, {1: 1.15}).merged([0, 0, 1, 1])
    alike = planned(schedule, layout, job_problem(schedule, layout, merged, BLOCKING_W), max_switches=2)
    plan = plan_job(job, purpose_of(schedule, layout, max_switches=2), starts=[alike])
    assert not alike.by_rank
    assert plan.expected.energy_j <= job.evaluate(job.planned_clocks(alike)).energy_j
    with pytest.raises(ValueError, match="tells the GPUs of a stage apart"):
        plan_job(job, purpose_of(schedule, layout), starts=[plan])


def test_raises_are_requested_early_for_every_kind_of_gpu():
    schedule, layout, job = job_of(PROFILE, slower={1: 1.15}, tensor=2, pipeline=2)
    plan = planned(schedule, layout, job, lead_s=0.05)
    for unit in plan.units:
        assert len(unit.requests) == unit.switches
        assert all(r.ahead > 0 or r.delay_s > 0 or r.edge == "begin" for r in unit.requests)
    assert any(r.delay_s > 0 for u in plan.units for r in u.requests)
    assert plan.expected.slowdown_percent <= 0


@pytest.mark.parametrize("policy", ["operations", "roles", "stages", "maximum"])
def test_other_policies(policy):
    schedule, layout, job = job_of(PROFILE, slower={1: 1.15}, tensor=2, pipeline=2)
    plan = planned(schedule, layout, job, policy=policy)
    assert 0 <= plan.expected.saved_percent <= plan.expected.bound_saved_percent + 1e-9
    assert plan.expected.slowdown_percent <= 0


def test_policies_that_compare_like_gpus_are_refused():
    schedule, layout, job = job_of(PROFILE, tensor=2, pipeline=2)
    with pytest.raises(UserError, match="policy uniform knows no unlike GPUs"):
        planned(schedule, layout, job, policy="uniform")


def test_what_does_not_fit_is_refused():
    layout, schedule = Layout(tensor=2, pipeline=2), Schedule(4, 4, p2p="ideal")
    with pytest.raises(UserError, match="layout of 2 pipeline stages does not fit a schedule of 4"):
        job_problem(schedule, layout, RankProfiles.alike(PROFILE, 4), BLOCKING_W)
    other = RankProfiles((PROFILE, profile_of([1.0, 1.1], (1500, 900))), (0, 1, 0, 0))
    with pytest.raises(UserError, match="not measured at any common clock"):
        job_problem(Schedule(2, 4, p2p="ideal"), layout, other, BLOCKING_W)


def test_ranks_in_a_plan_file_are_checked(tmp_path):
    schedule, layout, job = job_of(PROFILE, slower={1: 1.15}, tensor=2, pipeline=2)
    good = planned(schedule, layout, job).to_dict()
    path = tmp_path / "plan.json"

    def complaint(ranks):
        body = json.loads(json.dumps(good))
        for unit, text in zip(body["units"], ranks, strict=True):
            unit["ranks"] = text
        path.write_text(json.dumps(body))
        with pytest.raises(UserError) as caught:
            load_plan(path)
        return str(caught.value)

    assert [u["ranks"] for u in good["units"]] == ["0", "1", "2-3"]
    assert "units: not one list of segments per rank" in complaint(["0", "0", "2-3"])
    assert "units: not one list of segments per rank" in complaint(["0", "1", "2"])
    assert "units: ranks 4-5 do not exist in a job of 4" in complaint(["0", "1", "4-5"])
    assert "units: '' is not a list of ranks" in complaint(["0", "1", ""])


def test_a_plan_for_another_order_of_ranks_is_refused():
    schedule, layout, job = job_of(PROFILE, slower={1: 1.15}, tensor=2, pipeline=2)
    plan = planned(schedule, layout, job)
    assert plan.unit(0, 1).ranks == "1"
    with pytest.raises(UserError, match="the plan has rank 1 in stage 0, this run in stage 1"):
        plan.unit(1, 1)


def test_classes_alone_are_the_job_where_nothing_that_they_share_depends_on_the_clock():
    """The bounds of the classes add up to the job's, and plans made one by one are evaluated alike together."""
    fixed = {(stage, -1, "grad-sync"): curve(0.5, (1400,)) for stage in range(3)}
    profile = profile_of([1.0, 1.1, 0.9], CLOCKS_MHZ)
    profile = dataclasses.replace(profile, curves=profile.curves | fixed)
    _, _, job = job_of(profile, slower={1: 1.15, 6: 1.05}, chunks=2, p2p="batched", microbatches=6, tensor=2, data=2, pipeline=3)
    assert len(job.alone) == 2
    assert sum(bound(one.problem).energy_j for one in job.alone) == pytest.approx(bound(job.problem).energy_j)
    rng = np.random.default_rng(2)
    columns = [rng.integers(0, one.problem.tables.time_s.shape[1], len(one.problem.graph.vertices)) for one in job.alone]
    together = job.together(columns)
    own_s = [one.problem.iteration_s(clocks) for one, clocks in zip(job.alone, columns, strict=True)]
    assert job.problem.iteration_s(together) == pytest.approx(max(own_s))
    effective_j = sum(one.problem.effective_j(clocks) for one, clocks in zip(job.alone, columns, strict=True))
    assert job.problem.effective_j(together) == pytest.approx(effective_j)


def test_classes_that_are_late_together_are_searched_together():
    """A long grad sync that the clock slows: alone, each class trades its end against its own, together the longest counts for all."""
    profile = profile_of([1.0], CLOCKS_MHZ)
    grad_sync = curve(2.0, CLOCKS_MHZ, bound=0.0, dynamic_w=600.0)
    profile = dataclasses.replace(profile, curves=profile.curves | {(0, -1, "grad-sync"): grad_sync})
    schedule, layout, job = job_of(profile, 2, slower={1: 1.2}, data=2)
    alone = [solve(one.problem, "segments") for one in job.alone]
    assert all(one.problem.evaluate(found.clocks).slowdown_percent <= 0 for one, found in zip(job.alone, alone, strict=True))
    assert not job.problem.meets_deadline(job.problem.iteration_s(job.together([found.clocks for found in alone])))
    plan = planned(schedule, layout, job)
    assert plan.expected.slowdown_percent <= 0
    assert plan.expected.saved_percent > 5


def test_slowdown_is_one_end_for_all_replicas():
    schedule, layout, job = job_of(PROFILE, slower={1: 1.1}, settings={"slowdown": 0.1}, data=2, pipeline=2)
    plan = planned(schedule, layout, job, max_switches=4)
    assert plan.expected.slowdown_percent <= 10 + 1e-9
    assert plan.expected.saved_percent <= plan.expected.bound_saved_percent + 1e-9
    assert plan.expected.bound_share_percent > 90


def test_many_kinds_of_replicas_are_few_classes_and_figures_of_the_job_as_it_is():
    """Twelve replicas, each slow by another amount; in two stages, so that a careless cover would be slower than the job."""
    slower = {rank: 1 + 0.01 * (rank % 12) for rank in range(12)} | {12 + rank: 1 + 0.01 * (11 - rank % 12) for rank in range(12)}
    schedule, layout, job = job_of(PROFILE, slower=slower, most_classes=4, data=12, pipeline=2)
    _, _, exact = job_of(PROFILE, slower=slower, most_classes=99, data=12, pipeline=2)
    assert len(job.classes) < len(exact.classes) == 12
    assert job.problem.baseline_s == pytest.approx(exact.problem.baseline_s, rel=1e-12)
    plan = planned(schedule, layout, job, max_switches=4)
    found = exact.evaluate(exact.planned_clocks(plan))
    assert found.slowdown_percent <= 0
    assert plan.expected.energy_j == pytest.approx(found.energy_j)
    assert plan.expected.baseline_energy_j == pytest.approx(exact.problem.baseline_energy_j)
    assert plan.expected.bound_saved_percent is None
    assert 3 < plan.expected.saved_percent <= bound_percent(exact.problem)
