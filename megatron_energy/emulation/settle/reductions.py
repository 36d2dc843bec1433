"""Gradient reductions of one data-parallel group, some of which may overlap with the backward."""


class Reductions:
    """One group in one iteration. A chunk's reduction takes an even share of the whole; they run one after the other.

    Overlapped reductions cost time but no extra power: what NCCL draws beside a running computation is not modelled.
    """

    def __init__(self, members: int, chunks: int) -> None:
        self._members, self._chunks = members, chunks
        self._started: dict[int, int] = {}  # chunk -> members that have started it
        self._slowest_s = 0.0
        self._network_free_s = 0.0

    def start(self, at_s: float, chunk: int, whole_s: float) -> None:
        """A member starts a chunk's reduction; it runs from when all have. ``whole_s``: reducing everything, on that member."""
        self._slowest_s = max(self._slowest_s, whole_s)
        arrived = self._started[chunk] = self._started.get(chunk, 0) + 1
        if arrived == self._members:
            self._network_free_s = max(at_s, self._network_free_s) + self._slowest_s / self._chunks

    def finish(self, at_s: float) -> tuple[float, float]:
        """All members want the rest done: when it can begin, and which share of the whole it is."""
        begun = sum(arrived >= self._members for arrived in self._started.values())
        begin_s = max(at_s, self._network_free_s)
        self._started.clear()
        return begin_s, max(0.0, 1.0 - begun / self._chunks)
