"""Several iterations that are handed in at once are reported each as what it was, whatever the run has found out by then."""

from types import SimpleNamespace
from typing import cast

import pytest

from megatron_energy.records.iteration import RankIteration
from megatron_energy.records.summary import IterationSummary
from megatron_energy.session.conductor import Batch, Conductor, Handed
from megatron_energy.session.coordinator import Coordinator
from megatron_energy.session.directive import Directive
from megatron_energy.session.findings import Findings, IterationData
from megatron_energy.session.planned import PlannedRun
from megatron_energy.session.reporting import Reporter
from megatron_energy.session.timetable import Timetable
from tests.session.facts import job

PLANS = [cast(PlannedRun, SimpleNamespace(version=v, expected_time_s=4.0 + v, expected_energy_j=900.0)) for v in (1, 2)]


class FakeCoordinator:
    """Wants the first plan on and on; with ``safer``, its second plan comes into force as soon as an iteration is told."""

    def __init__(self, safer: bool = False) -> None:
        self.findings = Findings(baseline=[IterationData([RankIteration(0, 1, 0.0, 4.0, 1000.0)], [])], planned=PLANS[0])
        self.directives = [Directive("planned", plan_version=1)]
        self._safer = safer

    def advance(self, data: IterationData) -> None:
        if self._safer:
            self.findings.planned = PLANS[1]

    def interrupted(self) -> None:
        pass

    def look_at_control(self, seen: bool, fell_back: bool) -> None:
        pass

    def drop(self, reason: str, *, comparable: bool = True) -> None:
        self.findings.comparable = comparable


class FakeReporter:
    def __init__(self) -> None:
        self.added: list[IterationSummary] = []

    def add(self, summary: IterationSummary, data: IterationData) -> None:
        self.added.append(summary)

    def plan_made(self) -> None:
        pass


class OneRank:
    """A conductor of a single rank that has seen its plan."""

    def __init__(self, coordinator: FakeCoordinator) -> None:
        self.reporter = FakeReporter()
        timetables = [Timetable([(1, Directive("planned", plan_version=1))])]
        facts = job(pipeline=1)
        parts = (cast(Coordinator, coordinator), timetables, facts, ["GPU-0"], cast(Reporter, self.reporter))
        self.conductor = Conductor(*parts)
        self.serial = 0
        self.take("")

    def take(self, kinds: str, stale: str | None = None) -> None:
        """At one log interval: t: training, e: evaluation, u: not to be trusted. Every one takes 4 s and 800 J."""
        handed = []
        for kind in kinds:
            self.serial += 1
            record = RankIteration(0, self.serial, 4.0 * self.serial, 4.0 * self.serial + 4.0, 800.0, evaluation=kind == "e")
            handed.append(Handed(self.serial, record, self.serial, trusted=kind != "u"))
        self.conductor.take([Batch(handed, stale=stale)], self.serial + 1, patience_s=60.0)

    @property
    def saved(self) -> list[float | None]:
        return [summary.saved_percent for summary in self.reporter.added]


SAVED = pytest.approx(20.0)


def test_only_the_iteration_right_after_an_evaluation_is_not_compared() -> None:
    rank = OneRank(FakeCoordinator())
    rank.take("tettt")
    assert rank.saved == [SAVED, None, None, SAVED, SAVED]
    assert [s.phase for s in rank.reporter.added] == ["planned", "evaluation", "planned", "planned", "planned"]


def test_an_evaluation_at_the_end_of_a_log_interval_counts_in_the_next_one() -> None:
    rank = OneRank(FakeCoordinator())
    rank.take("te")
    rank.take("tt")
    assert rank.saved == [SAVED, None, None, SAVED]


def test_iterations_before_a_change_of_sizes_are_still_compared() -> None:
    rank = OneRank(FakeCoordinator())
    rank.take("ttu", stale="microbatches changed")
    rank.take("u")
    assert rank.saved == [SAVED, SAVED, None, None]


def test_expected_is_what_the_plan_in_force_expected() -> None:
    rank = OneRank(FakeCoordinator(safer=True))
    rank.take("tt")
    assert [(s.plan_version, s.expected_time_s) for s in rank.reporter.added] == [(1, 5.0)] * 2
