"""The course of a run: which phase follows which, and what ends it."""

from types import SimpleNamespace

import pytest

from megatron_energy.emulation.catalog import load
from megatron_energy.emulation.costs import Sizes
from megatron_energy.emulation.settle import Settler, Wiring
from megatron_energy.emulation.workload import Workload
from megatron_energy.errors import UserError
from megatron_energy.pipeline.match import match
from megatron_energy.pipeline.programs import program
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.records.iteration import RankIteration, Span
from megatron_energy.session.coordinator import Coordinator
from megatron_energy.session.directive import ITERATION_BEGIN, Directive
from megatron_energy.session.findings import IterationData
from megatron_energy.session.options import EnergyOptions
from megatron_energy.session.sweep import ITERATIONS_PER_CLOCK, held_clocks_mhz, sweep_clocks_mhz
from tests.session.facts import job

GPU = load("a100-sxm4-80gb")
SCHEDULE = Schedule(stages=2, microbatches=4, chunks=2)
FACTS = job(pipeline=2, chunks=2, microbatches=4)


class FakePlanner:
    """Plans nothing; remembers what it was given."""

    def __init__(self, mistake: str | None = None, given: object = None) -> None:
        self.mistake, self.given, self.profile = mistake, given, None

    def schedule(self, programs):
        return match(programs, FACTS.schedule())

    def given_plan(self, schedule, measured):
        return self.given

    def given_profile(self):
        return None

    def provenance(self):
        return {}

    def calibrated(self, schedule, profile, measured):
        return profile

    def plan(self, schedule, profile):
        if self.mistake:
            raise UserError(self.mistake)
        self.profile = profile
        return SimpleNamespace(activation=lambda rank: Directive("planned", plan_version=rank), directive=lambda rank: Directive("planned"))


def course(policy="segments", planner=None, **options):
    said: list[str] = []
    settings = EnergyOptions(policy=policy, baseline_iterations=2, sweep_clocks=3, **options)
    return Coordinator(settings, FACTS, planner or FakePlanner(), GPU.sm_clocks_mhz, said.append), said


def run(coordinator: Coordinator, iterations: int) -> list[str]:
    """Phases of the iterations, executed as the directives of rank 0 and 1 say."""
    workload = Workload.from_model(GPU, "gpt3-13b", Sizes(stages=2, chunks=2), micro_batch=4)
    settler, phases = Settler(workload, Wiring.grid(stages=2)), []
    for number in range(iterations):
        programs = []
        for stage, directive in enumerate(coordinator.directives):
            programs.append([*directive.requests.get(ITERATION_BEGIN, ()), *program(SCHEDULE, stage, grad_sync=True, optimizer=True)])
        phases.append(coordinator.directives[0].phase)
        coordinator.advance(IterationData(settler.settle(programs, number), programs))
    return phases


def test_phases_in_order():
    planner = FakePlanner()
    coordinator, said = course(planner=planner)
    phases = run(coordinator, 12)
    assert phases == ["baseline"] * 3 + ["sweep"] * (3 * ITERATIONS_PER_CLOCK) + ["planned"] * 3
    assert not said
    assert sorted({key[2] for key in planner.profile.curves}) == ["backward", "forward", "optimizer", "p2p"]  # one replica: no grad-sync


def test_the_first_planned_iteration_activates_every_rank():
    coordinator, _ = course()
    run(coordinator, 9)
    assert [d.plan_version for d in coordinator.directives] == [0, 1]  # the fake's activation
    run(coordinator, 1)
    assert [d.plan_version for d in coordinator.directives] == [0, 0]


def test_the_first_iteration_is_not_in_the_baseline():
    coordinator, _ = course()
    run(coordinator, 4)
    assert [i.records[0].iteration for i in coordinator.findings.baseline] == [1, 2]


def test_a_given_plan_needs_no_sweep():
    given = FakePlanner().plan(None, None)
    coordinator, _ = course(planner=FakePlanner(given=given))
    assert run(coordinator, 5) == ["baseline"] * 3 + ["planned"] * 2


@pytest.mark.parametrize("policy", ["measure", "maximum"])
def test_policies_that_only_measure(policy):
    coordinator, _ = course(policy)
    assert run(coordinator, 5) == ["baseline"] * 3 + ["measure"] * 2


def test_dry_run_plans_and_requests_nothing():
    coordinator, said = course("dry-run")
    run(coordinator, 9)  # baseline and sweep
    assert [d.requests[ITERATION_BEGIN][0].clock_mhz for d in coordinator.directives] == [0, 0]  # the sweep's clock is given back
    run(coordinator, 2)
    assert coordinator.findings.planned is not None
    assert all(not d.requests for d in coordinator.directives)
    assert said == ["dry run: the plan is computed and logged, no clock is requested for it"]


def test_a_plan_that_cannot_be_made_ends_in_maximum_clocks_with_one_line():
    coordinator, said = course(planner=FakePlanner(mistake="no clock is low enough"))
    phases = run(coordinator, 12)
    assert phases[-3:] == ["maximum"] * 3
    assert said == ["maximum clocks from here on: no clock is low enough"]
    assert coordinator.findings.off_reason == "no clock is low enough"


def test_dropping_gives_the_clocks_back_once():
    coordinator, said = course()
    run(coordinator, 10)
    coordinator.drop("told so")
    assert coordinator.directives[0].requests[ITERATION_BEGIN][0].clock_mhz == 0
    run(coordinator, 1)
    assert coordinator.directives[0] == Directive("maximum")
    assert said == ["maximum clocks from here on: told so"]


NEEDS = "a plan needs 9 before it (1 + 2 of the baseline + 6 of the sweep)"


@pytest.mark.parametrize(("ran", "more"), [(1, "9 more iterations"), (5, "5 more iterations"), (8, "2 more iterations")])
def test_a_run_too_short_for_a_plan_says_how_much_was_missing(ran, more):
    coordinator, said = course()
    run(coordinator, ran)
    coordinator.finish()
    assert said == [f"no plan came into force: {more} needed, {NEEDS}"]


def test_with_a_plan_at_hand_only_the_baseline_is_needed():
    coordinator, said = course(profile="profile.csv")
    run(coordinator, 1)
    coordinator.finish()
    assert said == ["no plan came into force: 3 more iterations needed, a plan needs 3 before it (1 + 2 of the baseline)"]


@pytest.mark.parametrize(("policy", "ran"), [("segments", 9), ("segments", 0), ("measure", 1)])
def test_nothing_is_said_of_runs_with_a_plan_without_iterations_or_without_wish(policy, ran):
    coordinator, said = course(policy)
    run(coordinator, ran)
    coordinator.finish()
    assert said == []


def test_a_run_that_is_known_to_be_too_short_is_told_at_its_start():
    said: list[str] = []
    options = EnergyOptions(policy="segments", baseline_iterations=2, sweep_clocks=3)
    for iterations in (9, 10):
        facts = job(pipeline=2, chunks=2, microbatches=4, iterations=iterations)
        coordinator = Coordinator(options, facts, FakePlanner(), GPU.sm_clocks_mhz, said.append)
    assert said == [f"no plan will come into force: this run has 9 iterations, {NEEDS}"]
    facts = job(pipeline=2, chunks=2, microbatches=4, iterations=3)
    coordinator = Coordinator(options, facts, FakePlanner(), GPU.sm_clocks_mhz, said.append)
    run(coordinator, 3)
    coordinator.finish()
    assert len(said) == 2 and said[1].startswith("no plan will come into force: this run has 3 iterations")  # said once


def test_sweep_clocks_are_spread_evenly_and_never_below_60_percent():
    assert sweep_clocks_mhz(GPU.sm_clocks_mhz, 3) == [1395, 1125, 855]


def test_the_sweep_begins_where_the_power_cap_holds_the_clock():
    assert sweep_clocks_mhz(GPU.sm_clocks_mhz, 5, [1290, 1283, 1275]) == [1290, 1275, 1125, 990, 855]


def test_a_gpu_with_few_clocks_tries_them_all():
    assert sweep_clocks_mhz([1410, 1200], 8) == [1200]
    assert sweep_clocks_mhz([1410], 8) == []


def test_held_clocks_are_means_per_kind_of_operation():
    spans = [
        Span("forward", 0, 0, 0, 1, 1290, throttled=True),
        Span("forward", 0, 1, 1, 2, 1280, throttled=True),
        Span("backward", 0, 0, 2, 3, 1275, throttled=True),
        Span("optimizer", -1, -1, 3, 4, 1410),
    ]
    assert held_clocks_mhz([RankIteration(0, 1, 0, 4, 0.0, spans)]) == [1285, 1275]
