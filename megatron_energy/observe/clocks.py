"""Clocks within a span: where a GPU changed its clock while it worked."""

from collections.abc import Sequence

from megatron_energy.records.iteration import RankIteration, Span

Piece = tuple[float, float, float]
"""(start s, end s, SM clock MHz)."""


def clock_pieces(span: Span, changes: Sequence[tuple[float, int]]) -> list[Piece]:
    """Cut a span where its clock changed.

    Args:
        span: the span; its own mean clock is used where no change says better.
        changes: (s, MHz) in force from then on, in order of time, as in :class:`RankIteration`.
    """
    before = [clock for time, clock in changes if time <= span.start_s]
    pieces: list[Piece] = []
    start_s, in_force = span.start_s, before[-1] if before else None
    for time_s, clock_mhz in changes:
        if span.start_s < time_s < span.end_s and in_force is not None and clock_mhz != in_force:
            pieces.append((start_s, time_s, float(in_force)))
            start_s, in_force = time_s, clock_mhz
    if in_force is None or not pieces:
        return [(span.start_s, span.end_s, span.clock_mhz)]
    return [*pieces, (start_s, span.end_s, float(in_force))]


def iteration_window(rows: Sequence[RankIteration]) -> tuple[float, float]:
    """First begin and last end of ranks that ran one iteration together, in s."""
    return min(r.start_s for r in rows), max(r.end_s for r in rows)
