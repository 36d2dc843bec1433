"""Which directive is in force in which iteration: known to every rank in advance, so that phases change without any message."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import TypeAlias

from megatron_energy.session.directive import ITERATION_BEGIN, Directive, constant_clock
from megatron_energy.session.guard import MOST_WINDOW
from megatron_energy.session.options import UNPLANNED, EnergyOptions
from megatron_energy.session.sweep import ITERATIONS_PER_CLOCK, sweep_clocks_mhz

Entry: TypeAlias = tuple[int, Directive]
"""The first iteration, and what holds from it on until the next entry."""


class Timetable:
    """Directives of one rank by the number of the training iteration, counted from 1 on."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        """``entries``: first iteration and its directive, which holds until the next entry's; the first one begins at 1."""
        if not entries or entries[0][0] != 1:
            raise ValueError("a timetable begins with the first iteration")
        self._first = [first for first, _ in entries]
        self._directives = [directive for _, directive in entries]

    def at(self, iteration: int) -> Directive:
        """What holds in this iteration."""
        return self._directives[bisect_right(self._first, iteration) - 1]

    def change(self, entries: Sequence[Entry]) -> None:
        """From the first of these entries on, they hold instead of what was to come."""
        keep = bisect_right(self._first, entries[0][0] - 1)
        del self._first[keep:], self._directives[keep:]
        self._first += [first for first, _ in entries]
        self._directives += [directive for _, directive in entries]


def opening(options: EnergyOptions, clocks_mhz: Sequence[int]) -> list[Entry]:
    """What can be told before the run: the baseline, the sweep if one is needed, and then waiting for the plan.

    It is what :class:`~megatron_energy.session.coordinator.Coordinator` will ask for, whatever it learns until then.
    """
    after_baseline = 1 + 1 + options.baseline_iterations  # the first iteration is not in the baseline
    entries: list[Entry] = [(1, Directive("baseline"))]
    if options.policy in UNPLANNED:
        return [*entries, (after_baseline, Directive("measure"))]
    if options.plan is not None or options.profile is not None:
        return [*entries, (after_baseline, Directive("planning"))]
    return [*entries, *sweep(after_baseline, sweep_clocks_mhz(clocks_mhz, options.sweep_clocks))]


def sweep(first: int, clocks_mhz: Sequence[int]) -> list[Entry]:
    """A sweep from this iteration on, and then waiting for the plan: a low clock never lasts until the next log interval."""
    swept: list[Entry] = [(first + n * ITERATIONS_PER_CLOCK, constant_clock("sweep", mhz)) for n, mhz in enumerate(clocks_mhz)]
    return [*swept, (first + len(clocks_mhz) * ITERATIONS_PER_CLOCK, constant_clock("planning", 0))]


def rest_of_sweep(first: int, wanted: Directive, clocks_mhz: Sequence[int]) -> list[Entry]:
    """What of a sweep over ``clocks_mhz`` is left when the coordinator wants ``wanted`` in iteration ``first``."""
    wanted_mhz = wanted.requests[ITERATION_BEGIN][0].clock_mhz
    return sweep(first, clocks_mhz[clocks_mhz.index(wanted_mhz) :])


def baseline_window(first: int, wanted: Directive, planned: Directive) -> list[Entry]:
    """The baseline measured again, for as long as the guard may need, and then the plan: not maximum clocks until the next log interval."""
    return [(first, wanted), (first + 1 + MOST_WINDOW, planned)]


def same_run(ran: Directive, wanted: Directive) -> bool:
    """Whether an iteration under ``ran`` is one that ``wanted`` asks for.

    A plan's first iteration also requests the clock it begins with, which changes nothing in later ones; only a sweep's phases
    differ in nothing but their requests.
    """
    if (ran.phase, ran.plan_version) != (wanted.phase, wanted.plan_version):
        return False
    return ran.phase != "sweep" or ran.requests == wanted.requests
