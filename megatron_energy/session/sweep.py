"""The clocks that a run tries to learn its profile."""

from collections.abc import Sequence

from megatron_energy.records.iteration import RankIteration

ITERATIONS_PER_CLOCK = 2
"""Of the sweep: see :data:`megatron_energy.session.learning.Series`."""

LOWEST_TRIED = 0.6
"""Of the maximum clock. Below about 900 of 1410 MHz an A100 no longer saves (Kareus, arXiv 2601.17654): slower clocks only cost time."""


def held_clocks_mhz(records: Sequence[RankIteration]) -> list[int]:
    """Clocks, highest first, at which the power cap held operations: the mean of each kind of operation, in MHz."""
    held: dict[tuple[str, int], list[float]] = {}
    for record in records:
        for span in record.spans:
            if span.throttled:
                held.setdefault((span.activity, span.chunk), []).append(span.clock_mhz)
    return sorted({round(sum(clocks) / len(clocks)) for clocks in held.values()}, reverse=True)


def sweep_clocks_mhz(supported_mhz: Sequence[int], count: int, held_mhz: Sequence[int] = ()) -> list[int]:
    """Clocks to try, highest first; the maximum is not among them: the baseline has shown what it gives.

    Where the power cap holds operations below the maximum, every request above gives the same. So trying begins at the clocks
    they were held at (time falls no further above them, a kink that a plan wants to know exactly), and the rest is spaced evenly
    down to :data:`LOWEST_TRIED`.

    Args:
        supported_mhz: what the GPU supports.
        count: how many clocks, if there are so many.
        held_mhz: see :func:`held_clocks_mhz`.
    """
    top = max(supported_mhz)
    clocks = sorted((c for c in supported_mhz if LOWEST_TRIED * top <= c < top), reverse=True)
    kinks = {min(clocks, key=lambda c: abs(c - h)) for h in (*held_mhz[:1], *held_mhz[1:][-1:])} if clocks else set()
    rest = [c for c in clocks if c < min(kinks)] if kinks else clocks
    wanted = min(count - len(kinks), len(rest))
    steps = max(wanted - (0 if kinks else 1), 1)
    first = 1 if kinks else 0  # below a kink the next clock is one step away, not next to it
    spread = {rest[round((i + first) * (len(rest) - 1) / steps)] for i in range(max(wanted, 0))}
    return sorted(kinks | spread, reverse=True)
