"""Which iterations of a run are compared, and that a long run takes no more memory than a short one."""

import gc

from megatron_energy.observe.phases import Phases, Windows
from megatron_energy.records.summary import GpuSummary, IterationSummary, Phase


def iteration(number: int, phase: Phase, energy_j: float = 100.0) -> IterationSummary:
    gpu = GpuSummary(0, "n0", 0, "GPU-0", 0, 0, 0, energy_j, energy_j / 2, 1200.0, 0.1)
    return IterationSummary(number, phase, 2.0, [gpu], emulated=True)


def windows(*phases: Phase, planless: bool = False) -> Windows:
    """Of a run of iterations 1, 2, ... with these phases; iteration n takes n J, an evaluation has the number of the one before it."""
    found, number = Phases(planless=planless), 0
    for phase in phases:
        number += phase != "evaluation"
        found.add(iteration(number, phase, float(number)))
    return found.windows()


def energies(found: Windows) -> list[float | None]:
    """Mean of baseline, planned, untouched and sweep: it tells which iterations are in them."""
    return [w.iteration_energy_j if w else None for w in (found.baseline, found.planned, found.untouched, found.sweep)]


def test_the_first_of_the_run_and_the_first_after_a_change_of_clocks_are_left_out() -> None:
    found = windows("baseline", "baseline", "baseline", "sweep", "sweep", "planned", "planned", "planned")
    assert energies(found) == [2.5, 7.5, None, 4.5]
    assert found.left_out == 2


def test_what_comes_right_after_an_evaluation_is_left_out() -> None:
    found = windows("baseline", "baseline", "evaluation", "baseline", "planned", "planned", "evaluation", "planned", "planned")
    assert energies(found) == [2.0, 6.0, None, None]  # 2 of 2 and 3; of 4 to 7 those that are settled: 5 and 7
    assert found.planned is not None and found.planned.stretches == 2


def test_where_there_are_no_others_they_count_but_the_runs_first_never_does() -> None:
    assert energies(windows("baseline", "baseline", "planned")) == [2.0, 3.0, None, None]
    only = windows("baseline")
    assert energies(only) == [None] * 4 and only.left_out == 1


def test_a_dry_run_keeps_what_came_after_the_sweep_apart() -> None:
    found = windows("baseline", "baseline", "sweep", "measure", "measure", "measure")
    assert energies(found) == [2.0, None, 5.5, 3.0]


def test_without_a_plan_every_iteration_is_the_baseline() -> None:
    found = windows("baseline", "baseline", "measure", "measure", planless=True)
    assert energies(found) == [3.0, None, None, None] and found.left_out == 1
    for planless in (True, False):
        assert energies(windows("measure", "measure", "measure", planless=planless)) == [2.5, None, None, None]


def test_iterations_at_maximum_clocks_are_in_no_window() -> None:
    found = windows("baseline", "baseline", "sweep", "maximum", "maximum")
    assert energies(found) == [2.0, None, None, 3.0] and found.left_out == 3


def kept() -> int:
    gc.collect()
    return sum(type(o) in (IterationSummary, GpuSummary) for o in gc.get_objects())


def test_memory_does_not_grow_with_the_run() -> None:
    found, before = Phases(), kept()
    for number in range(1, 2001):
        found.add(iteration(number, "baseline" if number < 4 else "planned"))
    assert kept() - before <= 10
    assert found.windows().planned.iterations == 1996  # type: ignore[union-attr]
