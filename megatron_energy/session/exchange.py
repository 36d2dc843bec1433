"""How the ranks of a run talk to each other about energy: small Python objects, at iteration boundaries only."""

from typing import Any, Protocol


class Exchange(Protocol):
    """Collective exchange of picklable objects. Every rank calls every method, in the same order.

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
