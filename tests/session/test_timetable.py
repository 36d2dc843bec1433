"""Timetables by hand."""

from dataclasses import replace

import pytest

from megatron_energy.emulation.catalog import load
from megatron_energy.session.directive import Directive, constant_clock
from megatron_energy.session.options import EnergyOptions
from megatron_energy.session.sweep import sweep_clocks_mhz
from megatron_energy.session.timetable import Timetable, baseline_window, opening, rest_of_sweep, same_run

CLOCKS = load("a100-sxm4-80gb").sm_clocks_mhz
OPTIONS = EnergyOptions(policy="segments", baseline_iterations=2, sweep_clocks=2)


def test_what_holds_from_when_on() -> None:
    table = Timetable([(1, Directive("baseline")), (4, Directive("measure"))])
    assert [table.at(n).phase for n in (1, 3, 4, 1000)] == ["baseline", "baseline", "measure", "measure"]
    table.change([(3, Directive("planned")), (6, Directive("maximum"))])
    assert [table.at(n).phase for n in (2, 3, 5, 6)] == ["baseline", "planned", "planned", "maximum"]


def test_a_timetable_begins_with_the_first_iteration() -> None:
    with pytest.raises(ValueError, match="begins with the first iteration"):
        Timetable([(2, Directive("baseline"))])


def test_the_opening_of_a_run_that_learns() -> None:
    swept = sweep_clocks_mhz(CLOCKS, 2)
    assert opening(OPTIONS, CLOCKS) == [
        (1, Directive("baseline")),
        (4, constant_clock("sweep", swept[0])),
        (6, constant_clock("sweep", swept[1])),
        (8, constant_clock("planning", 0)),
    ]


@pytest.mark.parametrize("given", [{"plan": "plan.json"}, {"profile": "profile.csv"}])
def test_the_opening_of_a_run_that_need_not_learn(given: dict[str, str]) -> None:
    assert opening(replace(OPTIONS, **given), CLOCKS) == [(1, Directive("baseline")), (4, Directive("planning"))]


def test_the_opening_of_a_run_that_only_measures() -> None:
    assert opening(replace(OPTIONS, policy="maximum"), CLOCKS) == [(1, Directive("baseline")), (4, Directive("measure"))]


def test_the_rest_of_a_sweep_ends_in_maximum_clocks() -> None:
    assert rest_of_sweep(11, constant_clock("sweep", 1200), [1395, 1200, 900]) == [
        (11, constant_clock("sweep", 1200)),
        (13, constant_clock("sweep", 900)),
        (15, constant_clock("planning", 0)),
    ]


def test_a_baseline_window_during_the_run_ends_in_the_plan() -> None:
    """Maximum clocks do not last until the next log interval: 1 iteration for the change of clocks, and at most 15 for the guard."""
    window, planned = constant_clock("baseline", 0), Directive("planned", plan_version=1)
    timetable = Timetable([(1, planned)])
    timetable.change(baseline_window(41, window, planned))
    assert [timetable.at(n) for n in (40, 41, 56, 57)] == [planned, window, window, planned]


@pytest.mark.parametrize(
    ("ran", "wanted", "same"),
    [
        (constant_clock("sweep", 1200), constant_clock("sweep", 1200), True),
        (constant_clock("sweep", 1200), constant_clock("sweep", 900), False),
        (constant_clock("maximum", 0), Directive("maximum"), True),
        (constant_clock("planning", 0), Directive("planned"), False),
        (Directive("planned", plan_version=1), Directive("planned", plan_version=2), False),
    ],
)
def test_which_iterations_are_what_was_asked_for(ran: Directive, wanted: Directive, same: bool) -> None:
    assert same_run(ran, wanted) is same
