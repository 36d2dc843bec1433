"""How the ranks of a run talk to each other about energy: small Python objects, at iteration boundaries only."""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class ExchangeError(Exception):
    """What a rank handed over was lost."""


@dataclass(frozen=True)
class Lost:
    """Travels in place of an item that could not be made ready, or be read: ranks meet all the same, and nobody waits for one of them."""

    why: str


def packed(item: Any) -> bytes:
    """The item as it travels, or a :class:`Lost`. Never raises: the others are waiting."""
    try:
        return pickle.dumps(item)
    except Exception as error:  # noqa: BLE001 -- objects may raise anything
        return pickle.dumps(Lost(f"what a rank hands over cannot be pickled ({type(error).__name__}: {error})"))


def unpacked(data: bytes) -> Any:
    """The item of :func:`packed`, or a :class:`Lost`."""
    try:
        return pickle.loads(data)
    except Exception as error:  # noqa: BLE001 -- likewise
        return Lost(f"what a rank handed over cannot be read ({type(error).__name__}: {error})")


def all_packed(items: Sequence[Any]) -> list[bytes]:
    """Every item; if one is lost all are, as a rank that heard of it alone would leave the others waiting for it the next time."""
    ready = [packed(item) for item in items]
    lost = next((data for data in ready if isinstance(unpacked(data), Lost)), None)
    return ready if lost is None else [lost] * len(ready)


def intact(item: Any) -> Any:
    """The item. Raises :class:`ExchangeError` if it was lost."""
    if isinstance(item, Lost):
        raise ExchangeError(item.why)
    return item


class Exchange(Protocol):
    """Collective exchange of picklable objects. Every rank calls every method, in the same order.

    What cannot be pickled or read is a :class:`Lost` among what is gathered; of what the home rank hands out it is an
    :class:`ExchangeError` on every rank.

    ``home`` is the rank that decides for all: the last one, where Megatron keeps its TensorBoard writer.
    """

    rank: int
    world_size: int
    home: int

    def gather(self, item: Any) -> list[Any] | None:
        """Everyone's item, by rank, on the home rank; None elsewhere."""
        ...

    def scatter(self, items: list[Any] | None) -> Any:
        """Rank r gets ``items[r]`` of the home rank."""
        ...

    def broadcast(self, item: Any) -> Any:
        """Every rank gets the home rank's item, which is made ready for travel once; what the others pass does not count."""
        ...


class SingleRank:
    """The exchange of a run with one rank."""

    rank = 0
    world_size = 1
    home = 0

    def gather(self, item: Any) -> list[Any]:
        """The one item."""
        return [item]

    def scatter(self, items: list[Any] | None) -> Any:
        """The one item."""
        if items is None:
            raise ValueError("the home rank scatters a list")
        return items[0]

    def broadcast(self, item: Any) -> Any:
        """The one item."""
        return item
