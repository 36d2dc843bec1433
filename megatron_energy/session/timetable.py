"""Which directive is in force in which iteration: known to every rank in advance, so that phases change without any message."""

from bisect import bisect_right
from collections.abc import Sequence

from megatron_energy.session.coordinator import ITERATIONS_PER_CLOCK, UNPLANNED, sweep_clocks_mhz
from megatron_energy.session.directive import Directive, constant_clock
from megatron_energy.session.options import EnergyOptions


class Timetable:
    """Directives of one rank by the number of the training iteration, counted from 1 on."""

    def __init__(self, entries: Sequence[tuple[int, Directive]]) -> None:
        """``entries``: first iteration and its directive, which holds until the next entry's; the first one begins at 1."""
        if not entries or entries[0][0] != 1:
            raise ValueError("a timetable begins with the first iteration")
        self._first = [first for first, _ in entries]
        self._directives = [directive for _, directive in entries]

    def at(self, iteration: int) -> Directive:
        """What holds in this iteration."""
        return self._directives[bisect_right(self._first, iteration) - 1]

    def set_from(self, iteration: int, directive: Directive) -> None:
        """From this iteration on, another directive, and nothing that was to come after."""
        keep = bisect_right(self._first, iteration - 1)
        del self._first[keep:], self._directives[keep:]
        self._first.append(iteration)
        self._directives.append(directive)


def opening(options: EnergyOptions, clocks_mhz: Sequence[int]) -> list[tuple[int, Directive]]:
    """What can be told before the run: the baseline, the sweep if one is needed, and then waiting for the plan.

    It is what :class:`~megatron_energy.session.coordinator.Coordinator` will ask for, whatever it learns until then.
    """
    after_baseline = 1 + 1 + options.baseline_iterations  # the first iteration is not in the baseline
    entries = [(1, Directive("baseline"))]
    if options.policy in UNPLANNED:
        return [*entries, (after_baseline, Directive("measure"))]
    if options.plan is not None or options.profile is not None:
        return [*entries, (after_baseline, Directive("planning"))]
    swept = sweep_clocks_mhz(clocks_mhz, options.sweep_clocks)
    entries += [(after_baseline + n * ITERATIONS_PER_CLOCK, constant_clock("sweep", mhz)) for n, mhz in enumerate(swept)]
    return [*entries, (after_baseline + len(swept) * ITERATIONS_PER_CLOCK, constant_clock("planning", 0))]


def same_run(ran: Directive, wanted: Directive) -> bool:
    """Whether an iteration under ``ran`` is one that ``wanted`` asks for.

    A plan's first iteration also requests the clock it begins with, which changes nothing in later ones; only a sweep's phases
    differ in nothing but their requests.
    """
    if (ran.phase, ran.plan_version) != (wanted.phase, wanted.plan_version):
        return False
    return ran.phase != "sweep" or ran.requests == wanted.requests
