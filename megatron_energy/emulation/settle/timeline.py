"""One GPU over one iteration: power, clock and spans, integrated as the simulation goes."""

import math
from dataclasses import dataclass

import numpy as np

from megatron_energy.records.iteration import Activity, RankIteration, Span

_MJ = 1e3  # per joule


@dataclass(slots=True)
class _Open:
    """The span that is under way; clocks are those at which time passed."""

    activity: Activity
    chunk: int
    microbatch: int
    start_s: float
    cycles: float = 0.0  # MHz x s
    lowest_mhz: int = 1_000_000
    highest_mhz: int = 0
    throttled: bool = False

    def span(self, end_s: float) -> Span:
        steady = self.lowest_mhz == self.highest_mhz
        clock_mhz = float(self.lowest_mhz) if steady else self.cycles / (end_s - self.start_s)
        return Span(self.activity, self.chunk, self.microbatch, self.start_s, end_s, clock_mhz, steady, self.throttled)


class Timeline:
    """Piecewise constant power and clock of one GPU, from the begin of its iteration. Times never fall."""

    __slots__ = ("_breaks_mj", "_breaks_s", "_clock_mhz", "_now_s", "_open", "_power_w", "_spans", "_throttled", "changes")

    def __init__(self, start_s: float, energy_mj: float, clock_mhz: int) -> None:
        self.changes = [(start_s, clock_mhz)]
        self._spans: list[Span] = []
        self._now_s = start_s
        self._power_w, self._clock_mhz, self._throttled = 0.0, clock_mhz, False
        self._breaks_s, self._breaks_mj = [start_s], [energy_mj]
        self._open: _Open | None = None

    def set(self, at_s: float, power_w: float, clock_mhz: int, throttled: bool = False) -> None:
        """From ``at_s`` on the GPU draws this power and runs at this clock (where its power cap holds it, below the request)."""
        self._pass_time(at_s)
        if clock_mhz != self._clock_mhz:
            self._change_clock(at_s, clock_mhz)
        self._power_w, self._clock_mhz, self._throttled = power_w, clock_mhz, throttled

    def _change_clock(self, at_s: float, clock_mhz: int) -> None:
        """Note it; what held for no time is forgotten."""
        if self.changes[-1][0] == at_s:
            self.changes.pop()
        if not self.changes or self.changes[-1][1] != clock_mhz:
            self.changes.append((at_s, clock_mhz))

    def open(self, at_s: float, activity: Activity, chunk: int = -1, microbatch: int = -1) -> None:
        """A span begins; the one before is closed. A wait that follows a wait goes on with it."""
        self.close(at_s)
        self._open = _Open(activity, chunk, microbatch, at_s)

    def close(self, at_s: float) -> None:
        """The open span ends, if there is one; a span without length leaves nothing."""
        self._pass_time(at_s)
        span, self._open = self._open, None
        if span is not None and at_s > span.start_s:
            self._spans.append(span.span(at_s))

    def _pass_time(self, at_s: float) -> None:
        passed_s = at_s - self._now_s
        if passed_s <= 0:
            return
        self._breaks_s.append(at_s)
        self._breaks_mj.append(self._breaks_mj[-1] + self._power_w * passed_s * _MJ)
        self._now_s = at_s
        span = self._open
        if span is not None:
            span.cycles += self._clock_mhz * passed_s
            span.lowest_mhz = min(span.lowest_mhz, self._clock_mhz)
            span.highest_mhz = max(span.highest_mhz, self._clock_mhz)
            span.throttled = span.throttled or self._throttled

    def finish(self, at_s: float, rank: int, iteration: int, counter_update_s: float) -> tuple[RankIteration, float]:
        """The iteration's record, and the energy in mJ since the emulation began."""
        self.close(at_s)
        start_s, start_mj, energy_mj = self._breaks_s[0], self._breaks_mj[0], self._breaks_mj[-1]
        updates = np.arange(math.floor(start_s / counter_update_s) + 1, math.floor(at_s / counter_update_s) + 1)
        updates_s = updates * counter_update_s
        readings = np.floor(np.interp(updates_s, self._breaks_s, self._breaks_mj)).astype(np.int64)
        record = RankIteration(
            rank=rank,
            iteration=iteration,
            start_s=start_s,
            end_s=at_s,
            energy_j=(energy_mj - start_mj) / _MJ,
            spans=_joined_waits(self._spans),
            clock_changes=self.changes,
            energy_samples=list(zip(updates_s.tolist(), readings.tolist(), strict=True)),
            emulated=True,
        )
        return record, energy_mj


def _joined_waits(spans: list[Span]) -> list[Span]:
    """Waits that touch become one: waiting for a tensor and then for the group is one wait to who reads the record."""
    joined: list[Span] = []
    for span in spans:
        last = joined[-1] if joined else None
        if last is not None and span.activity == last.activity == "wait" and last.end_s == span.start_s:
            total = last.clock_mhz * (last.end_s - last.start_s) + span.clock_mhz * (span.end_s - span.start_s)
            steady = last.steady_clock and span.steady_clock and last.clock_mhz == span.clock_mhz
            clock_mhz = span.clock_mhz if steady else total / (span.end_s - last.start_s)
            joined[-1] = Span("wait", -1, -1, last.start_s, span.end_s, clock_mhz, steady)
        else:
            joined.append(span)
    return joined
