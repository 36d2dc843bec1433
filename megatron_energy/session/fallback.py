"""What takes a rank to maximum clocks between two log intervals, alone and at once: the live switch, and long iterations.

Ranks exchange nothing in between, and need not: a faster rank makes nobody late. At the log interval the home rank hears of it and
decides what comes next, for all.
"""

from collections import deque
from typing import Protocol

from megatron_energy.session.directive import Directive
from megatron_energy.session.guard import Guard
from megatron_energy.session.guarded import AT_MAXIMUM

DROPPED = "dropped"
"""A reason to fall back that needs no words: the switch speaks for itself."""

LOWERED = ("sweep", "planned")
"""Phases in which a rank that has fallen back does not do what its timetable says; in the others clocks are at maximum anyway."""


class Switch(Protocol):
    """The live switch; see :mod:`megatron_energy.session.node_switch`."""

    @property
    def dropped(self) -> bool:
        """Whether the job is dropped."""

    def close(self) -> None:
        """The run is over."""


class OwnGuard:
    """The guard's test on this rank's own iteration times, which differ little from the job's: ranks meet once in every iteration.

    Args:
        slowdown: allowed, as a fraction of the baseline's iteration time.
    """

    def __init__(self, slowdown: float) -> None:
        self._slowdown = slowdown
        self._version = 0
        self.forget()

    def forget(self) -> None:
        """Iterations have other sizes from now on: what is known of the baseline is not theirs."""
        self._guard = Guard(self._slowdown)
        self._window: deque[float] = deque(maxlen=AT_MAXIMUM)  # iteration times at maximum clocks, s
        self._known = False  # how long an iteration takes there
        self._ran: tuple[str, int] | None = None

    def observe(self, directive: Directive, time_s: float) -> bool:
        """Take in an iteration; whether those under the plan look too long."""
        before, self._ran = self._ran, (directive.phase, directive.plan_version)
        if before != self._ran:  # it contains the change of clocks
            self._begin(directive)
        elif directive.phase in ("baseline", "maximum"):
            self._window.append(time_s)
        elif directive.phase == "planned" and self._known:
            return self._guard.observe(time_s)
        return False

    def interrupt(self) -> None:
        """Something else comes in between: the next iteration is not like others."""
        self._ran = None

    def _begin(self, directive: Directive) -> None:
        if self._window and directive.phase == "planned":
            self._guard.rebase(list(self._window))
            self._window.clear()
            self._known = True
        if directive.phase == "planned" and directive.plan_version != self._version:
            self._guard.restart()
            self._version = directive.plan_version
        self._guard.interrupt()


class Fallback:
    """Whether this rank is at maximum clocks until the next log interval, and why.

    Args:
        switch: the live switch of the node.
        guard: see :class:`OwnGuard`.

    Attributes:
        reason: why; empty: it follows its timetable.
    """

    def __init__(self, switch: Switch, guard: OwnGuard) -> None:
        self.reason = ""
        self._switch, self._guard = switch, guard

    @property
    def dropped(self) -> bool:
        """Whether the live switch has been seen to say so."""
        return self._switch.dropped

    def look(self) -> bool:
        """Whether the rank has to fall back now. For a hook: a read from memory."""
        if self.reason or not self._switch.dropped:
            return False
        self._fall(DROPPED)
        return True

    def observe(self, number: int, directive: Directive, time_s: float) -> bool:
        """Take in an iteration that followed the timetable; whether the rank has to fall back now."""
        if self.reason or not self._guard.observe(directive, time_s):
            return False
        self._fall(f"iterations up to {number} looked too long")
        return True

    def interrupt(self) -> None:
        """An evaluation, or an iteration that did not follow the timetable."""
        self._guard.interrupt()

    def resized(self) -> None:
        """Iterations have another number of microbatches from now on."""
        self._guard.forget()

    def heard(self) -> None:
        """The home rank has decided what comes next."""
        self.reason = ""

    def close(self) -> None:
        """The run is over."""
        self._switch.close()

    def _fall(self, reason: str) -> None:
        self.reason = reason
        self._guard.interrupt()
