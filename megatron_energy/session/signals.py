"""What speaks against a plan beside iteration times."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from megatron_energy.records.iteration import RankIteration


@dataclass(frozen=True)
class Signals:
    """What is known of an iteration's clocks beside its time. Whoever has the GPUs fills it in.

    Attributes:
        throttled: share of the GPUs' time, 0 to 1, in which power or temperature held clocks below the request.
        disobeyed: GPUs whose clock in force was not the one requested, without a reason.
        other_writer: who else sets clocks of the job's GPUs, in words; empty: nobody.
    """

    throttled: float = 0.0
    disobeyed: int = 0
    other_writer: str = ""


QUIET = Signals()
"""Nothing speaks against the clocks."""


def signals_of(records: Sequence[RankIteration]) -> Signals:
    """What the records of an iteration tell."""
    total_s = sum(r.time_s for r in records)
    return Signals(throttled=sum(r.throttled_s for r in records) / total_s if total_s > 0 else 0.0)


@dataclass(frozen=True)
class Violation:
    """Why a plan cannot go on.

    Attributes:
        reason: for the user.
        hopeless: no other plan would do better.
    """

    reason: str
    hopeless: bool = False


THROTTLED_MORE = 0.1
"""Share of the time by which GPUs have to be throttled more than in the baseline: a plan lowers clocks, so they should be less."""

REPEATED = 3
"""Iterations, of the last :data:`REMEMBERED_SIGNALS`, that a signal has to be seen in."""

REMEMBERED_SIGNALS = 10


class SignalGuard:
    """Watches what is known of clocks beside iteration times."""

    def __init__(self) -> None:
        self._baseline = 0.0
        self._recent: deque[Signals] = deque(maxlen=REMEMBERED_SIGNALS)

    def rebase(self, signals: Sequence[Signals]) -> None:
        """Take in a baseline window."""
        self._baseline = sum(s.throttled for s in signals) / len(signals)
        self._recent.clear()

    def observe(self, signals: Signals) -> Violation | None:
        """Take in one iteration under the plan."""
        if signals.other_writer:
            return Violation(f"another program sets something of its GPUs ({signals.other_writer})", hopeless=True)
        self._recent.append(signals)
        disobeyed = [s.disobeyed for s in self._recent if s.disobeyed]
        if len(disobeyed) >= REPEATED:
            self._recent.clear()
            return Violation(f"up to {max(disobeyed)} GPUs ran at other clocks than requested, without a reason", hopeless=True)
        throttled = [s.throttled for s in self._recent if s.throttled > self._baseline + THROTTLED_MORE]
        if len(throttled) >= REPEATED:
            self._recent.clear()
            least, before = 100 * min(throttled), 100 * self._baseline
            return Violation(f"power or temperature held clocks down for {least:.0f}% of the time, in the baseline for {before:.0f}%")
        return None
