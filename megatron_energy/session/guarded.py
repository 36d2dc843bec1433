"""The course of a run from its first planned iteration on: the plan, a safer one, or maximum clocks, and back.

On a violation the run takes one step towards more careful clocks: from the plan to the safer plan, from there to maximum clocks. After
a quiet time it takes a step back. A step back that turns out wrong doubles the quiet time that the next one needs.

Now and then, and whenever iterations look too long, some iterations at maximum clocks measure the baseline anew: it may have changed as
well, and then it is not the plan that is slow.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass

from megatron_energy.session.directive import Directive, constant_clock
from megatron_energy.session.findings import Course, Findings, IterationData
from megatron_energy.session.guard import Guard
from megatron_energy.session.planned import PlannedRun
from megatron_energy.session.signals import SignalGuard, Violation

Window = Generator[Directive | list[Directive], IterationData, list[IterationData]]
Judged = Generator[Directive | list[Directive], IterationData, Violation | None]

PATIENCE = 200
"""Quiet iterations before a step back is tried for the first time."""

MOST_PATIENCE = 12_800

EARLY = 20
"""Planned iterations after which a baseline window that was too short for its noise is followed by another one."""

ROUNDS = 2
"""Comparisons before a plan is given up, where one alone may be wrong: with much noise one of fifty is."""

AT_MAXIMUM = 64
"""Of the iterations at maximum clocks between two tries, the latest so many are the new baseline."""


@dataclass(frozen=True)
class Limits:
    """What the user allows.

    Attributes:
        slowdown: as a fraction of the baseline's iteration time.
        recheck: planned iterations between two measurements of the baseline; 0: only where iterations look too long.
    """

    slowdown: float
    recheck: int


class Guarded:
    """Runs under a plan as long as it keeps what it promises.

    Args:
        plan: what was planned.
        safer: makes a more careful plan of it, or None where there is none. Called at most once.
        findings: of the run; the plan in force is kept there.
        limits: see :class:`Limits`.
        ranks: of the job.
        say: prints one line for the user.
    """

    def __init__(
        self,
        plan: PlannedRun,
        safer: Callable[[PlannedRun], PlannedRun | None],
        findings: Findings,
        limits: Limits,
        ranks: int,
        say: Callable[[str], None],
    ) -> None:
        self._plans = [plan]
        self._safer: Callable[[PlannedRun], PlannedRun | None] | None = safer
        self._findings, self._limits, self._ranks, self._say = findings, limits, ranks, say
        self._guard, self._signals = Guard(limits.slowdown), SignalGuard()
        self._measured(findings.baseline)
        self._mark = " (emulated)" if any(i.emulated for i in findings.baseline) else ""  # behind lines with figures
        self._rung = 0  # in _plans; one past the last: maximum clocks
        self._patience = PATIENCE
        self._stepped_back = False  # to this rung, and not long ago
        self._since_baseline = 0
        self.comparisons = 0  # of the plan with maximum clocks, because iterations looked too long

    def course(self) -> Course:
        """All iterations that are left."""
        while True:
            if self._rung < len(self._plans):
                violation = yield from self._under(self._plans[self._rung])
            else:
                violation = yield from self._at_maximum()
            if violation is None:
                self._step_back()
            else:
                self._step_up(violation)

    def _under(self, plan: PlannedRun) -> "Judged":
        """Iterations under a plan until it is violated, or (None) until a less careful one may be tried."""
        self._findings.planned = plan
        self._guard.restart()
        yield self._activation(plan)  # contains the change of clocks
        count = 0
        while True:
            data = yield self._directives(plan)
            violation = self._signals.observe(data.signals)
            self._since_baseline += 1
            if violation is None and self._guard.observe(data.time_s):
                violation = yield from self._examined(plan)
            elif violation is None and self._baseline_is_old():
                self._measured((yield from self._window(constant_clock("baseline", 0), Directive("baseline"))))
                yield self._activation(plan)
            if violation is not None:
                return violation
            count += 1
            if count >= self._patience:
                self._stepped_back = False
                if self._rung:
                    return None

    def _baseline_is_old(self) -> bool:
        soon = EARLY if self._guard.uncertain else self._limits.recheck
        return self._limits.recheck > 0 and self._since_baseline >= min(self._limits.recheck, soon)

    def _examined(self, plan: PlannedRun) -> "Judged":
        """Iterations look too long: the plan against maximum clocks, with iterations of the same few minutes."""
        self.comparisons += 1
        before: list[IterationData] = []
        under: list[IterationData] = []
        for _ in range(ROUNDS):
            before += yield from self._window(constant_clock("baseline", 0), Directive("baseline"))
            under += yield from self._window(self._activation(plan), self._directives(plan))
            excess = self._guard.compared([i.time_s for i in before], [i.time_s for i in under])
            limit = self._guard.limit
            if excess <= limit or self._guard.is_certain(len(before)):
                break
        change = self._measured(before)
        if excess > limit:
            return Violation(f"iterations took {100 * excess:.1f}% longer than allowed (limit of the guard: {100 * limit:.1f}%)")
        self._say(
            f"iterations looked too long, so {len(before)} at maximum clocks were compared with {len(under)} under the plan: "
            f"the plan keeps its time ({100 * excess:+.1f}%), the baseline has changed by {100 * change:+.1f}%{self._mark}"
        )
        return None

    def _at_maximum(self) -> "Judged":
        yield constant_clock("maximum", 0)
        recent: list[IterationData] = []
        for _ in range(self._patience):
            recent = [*recent[1 - AT_MAXIMUM :], (yield Directive("maximum"))]
        self._measured(recent)
        return None

    def _step_up(self, violation: Violation) -> None:
        if self._stepped_back:
            self._patience = min(2 * self._patience, MOST_PATIENCE)
        self._stepped_back = False
        if violation.hopeless:
            self._rung = len(self._plans)
        else:
            if self._safer is not None:
                safer, self._safer = self._safer(self._plans[0]), None
                self._plans += [] if safer is None else [safer]
            self._rung += 1
        if self._rung < len(self._plans):
            self._say(f"a safer plan from here on, clocks half-way up to the maximum: under the plan {violation.reason}{self._mark}")
        else:
            self._say(f"maximum clocks for the next {self._patience} iterations: under the plan {violation.reason}{self._mark}")

    def _step_back(self) -> None:
        self._rung -= 1
        self._stepped_back = True
        which = "safer plan" if self._rung else "plan"
        self._say(f"the {which} is tried again after {self._patience} iterations at higher clocks")

    def _window(self, first: "Directive | list[Directive]", then: "Directive | list[Directive]") -> "Window":
        """So many iterations as the guard needs, after a first one that contains the change of clocks."""
        self._guard.interrupt()
        yield first
        seen = []
        for _ in range(self._guard.window):
            seen.append((yield then))
        return seen

    def _measured(self, window: "list[IterationData]") -> float:
        """A new baseline window; by what fraction its time differs from the baseline before."""
        self._since_baseline = 0
        self._signals.rebase([i.signals for i in window])
        return self._guard.rebase([i.time_s for i in window])

    def _directives(self, plan: PlannedRun) -> list[Directive]:
        return [plan.directive(rank) for rank in range(self._ranks)]

    def _activation(self, plan: PlannedRun) -> list[Directive]:
        return [plan.activation(rank) for rank in range(self._ranks)]
