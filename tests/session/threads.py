"""Ranks as threads of one process, and the exchange between them."""

import threading
from collections.abc import Callable, Sequence
from typing import Any


class Meeting:
    """What the ranks of a job share; counts their exchanges."""

    def __init__(self, ranks: int) -> None:
        self.barrier = threading.Barrier(ranks, timeout=60)
        self.items: list[Any] = [None] * ranks
        self.exchanges = 0


class ThreadExchange:
    """Implements megatron_energy.session.exchange.Exchange for one of the threads."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.rank, self.world_size, self.home = rank, len(meeting.items), len(meeting.items) - 1
        self._meeting = meeting

    def gather(self, item: Any) -> list[Any] | None:
        self._meeting.items[self.rank] = item
        self._meeting.barrier.wait()
        found = list(self._meeting.items) if self.rank == self.home else None
        self._count()
        self._meeting.barrier.wait()
        return found

    def scatter(self, items: list[Any] | None) -> Any:
        if items is not None:
            self._meeting.items[:] = items
        self._meeting.barrier.wait()
        found = self._meeting.items[self.rank]
        self._count()
        self._meeting.barrier.wait()
        return found

    def broadcast(self, item: Any) -> Any:
        return self.scatter([item] * self.world_size if self.rank == self.home else None)

    def _count(self) -> None:
        if self.rank == self.home:
            self._meeting.exchanges += 1


def on_all_ranks(work: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run every rank's work in a thread of its own; what they return, by rank. The first exception is raised here."""
    results: list[Any] = [None] * len(work)
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = work[rank]()
        except BaseException as error:  # noqa: BLE001 -- raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
