"""Cheapest clock sequences with few switches, by dynamic programming over (operation, switches used, clock)."""

import numpy as np

from megatron_energy.pipeline.graph import FloatArray, IntArray


def cheapest_sequences(weight: FloatArray, switches: int, raise_j: FloatArray | None = None) -> IntArray:
    """Cheapest sequences along a path, for a batch of units at once; exact.

    Args:
        weight: (B, N, F) cost of every position at every clock, clocks highest first.
        switches: most clock changes along the path (its ends are not joined).
        raise_j: (B, N, F) non-increasing along F: a change at position i from clock f to a higher one g also costs
            ``raise_j[b, i, g] - raise_j[b, i, f]``; None: changes are free.

    Returns:
        (B, N) clock columns.
    """
    batch, length, clocks = weight.shape
    step = np.ascontiguousarray(weight.transpose(1, 2, 0))
    extra = None if raise_j is None else np.ascontiguousarray(raise_j.transpose(1, 2, 0))
    best = np.empty((length, switches + 1, clocks, batch))  # cheapest path that ends here with so many changes at this clock
    entry = np.empty((length, switches + 1, clocks, batch)) if extra is not None else np.empty((length, switches + 1, 1, batch))
    best[0] = step[0]
    best[0, 1:] = np.inf
    for i in range(1, length):
        entry[i] = _entry(best[i - 1], None if extra is None else extra[i])
        np.minimum(best[i - 1, 1:], entry[i, :-1], out=best[i, 1:])
        best[i, 0] = best[i - 1, 0]
        best[i] += step[i]
    return _trace(best, entry, extra)


def _entry(before: FloatArray, extra: FloatArray | None) -> FloatArray:
    """(K, F or 1, B) cheapest way to change to each clock from any clock; the raise cost splits into a part of either clock."""
    if extra is None:
        return np.asarray(before.min(axis=1, keepdims=True), dtype=np.float64)
    from_higher = np.minimum.accumulate(before, axis=1)
    from_lower = np.minimum.accumulate((before - extra)[:, ::-1], axis=1)[:, ::-1] + extra
    return np.minimum(from_higher, from_lower)


def _trace(best: FloatArray, entry: FloatArray, extra: FloatArray | None) -> IntArray:
    length, _, clocks, batch = best.shape
    rows = np.arange(batch)
    used, clock = np.divmod(best[-1].transpose(2, 0, 1).reshape(batch, -1).argmin(axis=1), clocks)
    sequence = np.empty((batch, length), dtype=np.int64)
    for i in range(length - 1, 0, -1):
        sequence[:, i] = clock
        column = clock if extra is not None else np.zeros_like(clock)
        changed = (used > 0) & (entry[i, used - 1, column, rows] < best[i - 1, used, clock, rows])
        if changed.any():
            used = np.where(changed, used - 1, used)
            came_from = best[i - 1, used, :, rows]  # (B, F)
            if extra is not None:
                came_from = came_from + np.maximum(extra[i, clock, rows][:, np.newaxis] - extra[i, :, rows], 0.0)
            clock = np.where(changed, came_from.argmin(axis=1), clock)
    sequence[:, 0] = clock
    return sequence


def cheapest_cycle(weight: FloatArray, switches: int) -> tuple[float, IntArray]:
    """(cost, (N,) clock columns): cheapest sequence of one unit with so many switches around the *cycle*; exact.

    Args:
        weight: (N, F) cost of every position at every clock.
        switches: most clock changes, the wrap from the last position to the first included.
    """
    length, clocks = weight.shape
    best = np.full((switches + 1, clocks, clocks), np.inf)  # changes so far, clock, first clock
    best[0][np.arange(clocks), np.arange(clocks)] = weight[0]
    changed = np.zeros((length, switches + 1, clocks, clocks), dtype=bool)
    came = np.zeros((length, switches + 1, clocks), dtype=np.int64)
    for i in range(1, length):
        source = best.argmin(axis=1)
        least = np.take_along_axis(best, source[:, np.newaxis], axis=1)
        changed[i, 1:], came[i, 1:] = least[:-1] < best[1:], source[:-1]
        best[1:] = np.where(changed[i, 1:], least[:-1], best[1:])
        best += weight[i][:, np.newaxis]
    best[switches][~np.eye(clocks, dtype=bool)] = np.inf  # closing the cycle would be one change too many
    used, clock, first = (int(part) for part in np.unravel_index(best.argmin(), best.shape))
    value, sequence = float(best[used, clock, first]), np.empty(length, dtype=np.int64)
    for i in range(length - 1, 0, -1):
        sequence[i] = clock
        if changed[i, used, clock, first]:
            used, clock = used - 1, int(came[i, used, first])
    sequence[0] = clock
    return value, sequence
