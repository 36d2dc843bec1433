"""A profile that does not explain the run is no ground for a plan, and a plan that does not keep its promise ends."""

import dataclasses

import pytest

from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.session.learning import LearningError, transfer_time_s
from megatron_energy.session.options import EnergyOptions
from megatron_energy.session.trust import Baseline, check_baseline
from tests.session.facts import job
from tests.session.simulated import SimulatedRun

OPTIONS = EnergyOptions(
    policy="segments",
    device="emulated",
    emulated_model="gpt3-13b",
    emulated_micro_batch=4,
    baseline_iterations=2,
    sweep_clocks=3,
)
UNTIL_PLAN = 1 + 2 + 2 * 3


def small_run(**changes) -> SimulatedRun:
    """A pipeline of two stages with two chunks."""
    options = dataclasses.replace(OPTIONS, **changes)
    facts = job(pipeline=2, chunks=2, microbatches=4, core_version="0.19.2")
    return SimulatedRun(options, facts, Schedule(2, 4, 2, p2p="overlap-wait"))


def test_operations_too_short_for_the_counter_end_in_maximum_clocks():
    run = small_run(emulated_model="gpt3-1.3b", emulated_micro_batch=1)
    run.iterate(UNTIL_PLAN + 1)
    assert run.coordinator.findings.planned is None
    assert len(run.said) == 1
    assert run.said[0].startswith("maximum clocks from here on")


def test_the_transfer_time_is_found_where_waits_show_only_part_of_it():
    run = small_run(emulated_model="gpt3-2.7b")
    baseline = run.iterate(2)[1]
    true_s = run.settler.workload.transfer_s
    records = [dataclasses.replace(r, spans=[s for s in r.spans if s.activity != "wait"]) for r in baseline.records]
    assert transfer_time_s(records) == 0.0  # nothing to see in the spans: the fit has to find it all
    run.iterate(UNTIL_PLAN - 2)
    learned = run.coordinator.findings.profile.curves[0, -1, "p2p"].time_s[0]
    assert learned == pytest.approx(true_s, rel=0.05)


EXPECTED = Baseline(10.0, 4000.0)


def test_a_baseline_without_energies_is_refused_for_what_it_lacks() -> None:
    with pytest.raises(LearningError, match=r"the baseline.s energy was not measured: .*give more --energy-baseline-iterations"):
        check_baseline("the profile p.csv", Baseline(10.0, 4000.0), Baseline(10.0, float("nan")))


@pytest.mark.parametrize(("time_s", "energy_j"), [(10.2, 4000.0), (9.8, 4000.0), (10.0, 4100.0)])
def test_a_baseline_that_is_not_explained_is_refused(time_s, energy_j):
    with pytest.raises(LearningError, match=r"^the profile p.csv does not explain the run \(unexplained"):
        check_baseline("the profile p.csv", EXPECTED, Baseline(time_s, energy_j))


def test_nothing_explains_a_run():
    with pytest.raises(LearningError, match="does not explain the run"):
        check_baseline("the plan p.json", Baseline(0.0, 0.0), Baseline(10.0, 4000.0))


def test_what_is_left_unexplained_is_told():
    told = check_baseline("the profile p.csv", EXPECTED, Baseline(10.05, 3980.0))
    assert told == "unexplained of the measured baseline: +0.50% of its time, -0.50% of its energy"


def test_allowed_slowdown_and_switches_are_used():
    run = small_run(slowdown=0.03, max_switches=2)
    run.iterate(UNTIL_PLAN + 1)
    planned, findings = run.coordinator.findings.planned, run.coordinator.findings
    assert planned.switches_max <= 2
    assert planned.plan.expected.deadline_s == pytest.approx(1.03 * planned.plan.expected.baseline_iteration_s)
    (data,) = run.iterate(1)
    slowdown = data.time_s / findings.baseline_time_s - 1
    assert 0.01 < slowdown < 0.0301  # it is used, and not exceeded


def test_something_unforeseen_at_home_ends_the_plan_and_is_kept(tmp_path):
    from megatron_energy.session.emulated_session import EmulatedSession, Home

    said = []
    facts = job(pipeline=1, microbatches=2, core_version="0.19.2")
    home = Home(dataclasses.replace(OPTIONS, directory=str(tmp_path)), facts, (1410, 1200, 1005), said.append)

    def broken(*_):
        raise RuntimeError("unforeseen")

    home.settle = broken
    assert EmulatedSession._settled(home, [], 1, False) is None
    assert home.coordinator.directives[0].phase == "maximum"
    assert len(said) == 1
    assert "RuntimeError: unforeseen" in said[0]
    assert "RuntimeError: unforeseen" in (tmp_path / "error.txt").read_text()
