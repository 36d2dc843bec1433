"""Who is connected to whom: plain lists of ranks, so that settling knows nothing of Megatron's layouts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Wiring:
    """The job's ranks; every tuple has one entry per rank, every rank is in exactly one group of a kind.

    Attributes:
        stage: pipeline stage.
        next_rank, prev_rank: pipeline neighbours, cyclic; the rank itself without a pipeline.
        lock_step: groups that run every operation together (tensor- and context-parallel ranks, experts).
        data_parallel: groups that reduce gradients together.
        node: host; the GPUs of one host share a driver lock.

    Raises:
        ValueError: the entries contradict each other.
    """

    stage: Sequence[int]
    next_rank: Sequence[int]
    prev_rank: Sequence[int]
    lock_step: Sequence[Sequence[int]]
    data_parallel: Sequence[Sequence[int]]
    node: Sequence[int | str]

    def __post_init__(self) -> None:
        ranks = range(len(self.stage))
        for name in ("next_rank", "prev_rank", "node"):
            if len(getattr(self, name)) != len(ranks):
                raise ValueError(f"{name} has {len(getattr(self, name))} entries for {len(ranks)} ranks")
        for name in ("lock_step", "data_parallel"):
            groups = getattr(self, name)
            if sorted(_flat(groups)) != list(ranks):
                raise ValueError(f"every rank must be in exactly one {name} group: {groups}")
            if any(len({self.stage[rank] for rank in group}) > 1 for group in groups):
                raise ValueError(f"the ranks of a {name} group must be of one stage: {groups}")
        for rank in ranks:
            if self.prev_rank[self.next_rank[rank]] != rank:
                raise ValueError(f"rank {rank} is not the previous rank of its next rank {self.next_rank[rank]}")

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.stage)

    @classmethod
    def grid(cls, stages: int, tensor: int = 1, data: int = 1, gpus_per_node: int = 8) -> "Wiring":
        """Megatron's default order: tensor-parallel ranks are neighbours, then data, then pipeline."""
        width = tensor * data
        size = width * stages
        return cls(
            stage=[rank // width for rank in range(size)],
            next_rank=[(rank + width) % size for rank in range(size)],
            prev_rank=[(rank - width) % size for rank in range(size)],
            lock_step=[range(first, first + tensor) for first in range(0, size, tensor)],
            data_parallel=[range(s * width + t, (s + 1) * width, tensor) for s in range(stages) for t in range(tensor)],
            node=[rank // gpus_per_node for rank in range(size)],
        )


def _flat(groups: Iterable[Iterable[int]]) -> list[int]:
    return [rank for group in groups for rank in group]
