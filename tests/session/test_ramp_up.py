"""The number of microbatches changes during a run: a baseline and a plan for each, from one profile."""

from dataclasses import replace
from pathlib import Path

import pytest

from megatron_energy.errors import UserError
from megatron_energy.observe.journal import Journal
from megatron_energy.pipeline.programs import program
from megatron_energy.session.fallback import Fallback, OwnGuard
from megatron_energy.session.options import EnergyOptions
from tests.session.launched import UNTIL_PLAN
from tests.session.simulated import SimulatedRun
from tests.session.small_job import FACTS, OPTIONS, make
from tests.session.timetable_job import LOG_INTERVAL, Job

BASELINE = ["baseline"] * 2


def resize(run: SimulatedRun, microbatches: int) -> None:
    """From now on the ranks do what Megatron would with so many microbatches."""
    schedule = FACTS.with_microbatches(microbatches).schedule("overlap")
    run.programs = [program(schedule, stage, grad_sync=True, optimizer=True) for stage in run.facts.stage_of_rank]


def ramp(run: SimulatedRun, microbatches: int) -> None:
    """The same, and the coordinator is told at the end of the first such iteration, which it does not count."""
    resize(run, microbatches)
    assert run.coordinator.resized(microbatches)


def phases(run: SimulatedRun, iterations: int) -> list[str]:
    done = []
    for _ in range(iterations):
        done.append(run.coordinator.directives[0].phase)
        run.iterate(1)
    return done


ONE_CLOCK = replace(OPTIONS, policy="uniform", slowdown=0.05)  # such plans are made in a moment


@pytest.fixture
def run() -> SimulatedRun:
    planned = SimulatedRun(ONE_CLOCK, FACTS, FACTS.schedule("overlap"))
    planned.iterate(UNTIL_PLAN + 1)
    return planned


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("made"))


def test_one_profile_serves_every_number(run: SimulatedRun) -> None:
    findings = run.coordinator.findings
    profile = findings.profile
    for count, microbatches in enumerate((8, 6), 2):
        ramp(run, microbatches)
        assert findings.planned is None and findings.baseline_time_s is None, "nothing to compare with"
        assert phases(run, 4) == [*BASELINE, "planned", "planned"], "nothing is swept again"
        planned = findings.planned
        assert planned is not None and planned.plan.schedule.microbatches == microbatches
        assert planned.version == 2 * count - 1, "the numbers between are for safer plans"
        assert findings.profile is not None and findings.profile.curves.keys() == profile.curves.keys()
        data = run.iterate(1)[0]
        assert data.time_s <= 1.051 * findings.baseline_time_s
        assert data.energy_j < 0.99 * findings.baseline_energy_j


def test_before_there_is_a_profile_the_sweep_begins_anew() -> None:
    run = SimulatedRun(ONE_CLOCK, FACTS, FACTS.schedule("overlap"))
    run.iterate(4)
    ramp(run, 8)
    assert phases(run, UNTIL_PLAN + 1) == [*BASELINE, *["sweep"] * (UNTIL_PLAN - 2), "planned"]


def test_numbers_that_change_all_the_time_are_told_once(run: SimulatedRun) -> None:
    for microbatches in (8, 4, 8, 4, 8):
        ramp(run, microbatches)
        assert phases(run, 1) == ["baseline"]
    assert [line for line in run.said if "microbatches changed" in line] == [
        "microbatches changed from 4 to 8: a new baseline at maximum clocks, then a plan for these"
    ]
    run.coordinator.finish()
    assert run.said[-1].startswith("no plan for 8 microbatches came into force: 2 more iterations needed")


def given(made: Path, microbatches: int, **changed: bool) -> SimulatedRun:
    """A run that begins with so many microbatches and is given a plan for 4."""
    options = replace(OPTIONS, plan=str(made / "plan.json"))
    ranks = tuple(replace(rank, **changed) for rank in FACTS.with_microbatches(microbatches).ranks)
    facts = replace(FACTS, ranks=ranks)
    return SimulatedRun(options, facts, facts.schedule("overlap"))


def test_a_given_plan_waits_for_its_number(made: Path) -> None:
    run = given(made, 8, ramp_up=True)
    run.planner.check()
    assert phases(run, 3) == ["maximum"] * 3
    ramp(run, 4)
    assert phases(run, 4) == [*BASELINE, "planned", "planned"]
    ramp(run, 8)
    assert phases(run, 2) == ["maximum"] * 2
    ramp(run, 4)
    assert phases(run, 3) == [*BASELINE, "planned"]
    waits = [line for line in run.said if line.startswith("maximum clocks while iterations have 8 microbatches: the plan ")]
    assert len(waits) == 2 and waits[0].endswith("plan.json is for 4")


def test_without_a_ramp_up_a_plan_for_another_number_is_refused(made: Path) -> None:
    with pytest.raises(UserError, match="the plan was made for microbatches 4, this run has 8"):
        given(made, 8).planner.check()


@pytest.mark.parametrize("policy", ["measure", "maximum"])
def test_where_nothing_is_planned_iterations_are_not_compared_any_more(policy: str) -> None:
    options: EnergyOptions = replace(OPTIONS, policy=policy)
    run = SimulatedRun(options, FACTS, FACTS.schedule("overlap"))
    run.iterate(3)
    resize(run, 8)
    assert not run.coordinator.resized(8)
    assert phases(run, 2) == ["measure"] * 2
    assert run.said[-1] == "from here on, iterations are not compared with the baseline: microbatches changed from 4 to 8 during the run"


# Ranks that talk at log intervals only.


def until_planned(job: Job) -> None:
    job.iterate(UNTIL_PLAN + LOG_INTERVAL - UNTIL_PLAN % LOG_INTERVAL)
    while job.sessions[0]._timetable.at(job.number + 1).phase != "planned":
        job.iterate(LOG_INTERVAL)


def tell(job: Job, microbatches: int) -> None:
    """Megatron begins an iteration with so many microbatches."""
    resize(job.run, microbatches)
    for session in job.sessions:
        session.resized(microbatches)


def alone(job: Job) -> list[bool]:
    return [session.requests == {} for session in job.sessions]


def test_ranks_wait_at_maximum_clocks_for_a_timetable_of_the_new_size(tmp_path: Path) -> None:
    job = Job(tmp_path, ONE_CLOCK)
    until_planned(job)
    job.iterate(LOG_INTERVAL + 1)
    told = job.number + 1
    tell(job, 8)
    assert alone(job) == [True, True] and [c.maximum for c in job.controllers] == [1, 1]
    job.iterate(LOG_INTERVAL - 1)
    assert job.number % LOG_INTERVAL == 0 and job.sessions[0]._timetable.at(job.number + 1).phase == "baseline"
    while job.sessions[0]._timetable.at(job.number + 1).phase != "planned":
        job.iterate(LOG_INTERVAL)
    job.iterate(LOG_INTERVAL)
    assert alone(job) == [False, False]
    findings = job.conductor.coordinator.findings
    assert findings.planned is not None and findings.planned.plan.schedule.microbatches == 8
    first, *others = [i for i in Journal(tmp_path).read() if i.iteration >= told]
    assert (first.iteration, first.phase) == (told, "maximum")
    without = [i for i in (first, *others) if i.phase != "planned"]
    assert [(i.saved_percent, i.slowdown_percent) for i in without] == [(None, None)] * len(without), "another size is not compared"
    last = others[-1]
    assert last.phase == "planned" and last.saved_percent is not None and last.saved_percent > 0.5


def test_the_baseline_of_a_smaller_size_is_not_held_against_a_larger_one(tmp_path: Path) -> None:
    job = Job(tmp_path, ONE_CLOCK)
    for session in job.sessions:
        session._fallback = Fallback(job.switch, OwnGuard(ONE_CLOCK.slowdown))
    for microbatches in (6, 8, 10):
        job.iterate(2 * LOG_INTERVAL)
        tell(job, microbatches)
    until_planned(job)
    job.iterate(3 * LOG_INTERVAL)
    assert job.phases[-3 * LOG_INTERVAL :] == ["planned"] * 3 * LOG_INTERVAL
    assert [line for line in job.said if "looked too long" in line] == []
    assert [controller.maximum for controller in job.controllers] == [3, 3], "once for every new size"


def test_a_number_that_comes_back_before_the_log_interval_brings_the_plan_back(tmp_path: Path) -> None:
    job = Job(tmp_path, ONE_CLOCK)
    until_planned(job)
    job.iterate(LOG_INTERVAL)
    planned = job.conductor.coordinator.findings.planned
    tell(job, 8)
    job.iterate(1)
    tell(job, 4)
    job.iterate(LOG_INTERVAL - 1)
    assert alone(job) == [False, False] and job.conductor.coordinator.findings.planned is planned
    assert [session._timetable.at(job.number + 1).phase for session in job.sessions] == ["planned"] * 2
