"""Megatron's layout of ranks: which tensor, context, expert, data and pipeline coordinates a rank has, and who shares a group.

Megatron lays ranks out twice. The attention grid has tensor, context, data and pipeline axes; the expert grid of a
mixture-of-experts model divides the same ranks into expert-tensor, expert, expert-data and pipeline axes. So expert-parallel
ranks *are* data-parallel ranks. On both grids the first axis of ``order`` varies fastest.

Example, ``Layout(tensor=2, data=2, pipeline=2)``: ranks 0 and 1 are a tensor group, 0 and 2 a data group, 0 and 4 a pipeline.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Literal, TypeAlias, get_args

from megatron_energy.errors import UserError

Axis: TypeAlias = Literal["tp", "cp", "ep", "dp", "pp"]
AXES: tuple[Axis, ...] = get_args(Axis)
NAMES: Mapping[str, str] = {"tp": "tensor", "cp": "context", "ep": "expert", "dp": "data", "pp": "pipeline"}


@dataclass(frozen=True, slots=True)
class Coordinates:
    """Where one rank stands. ``ep`` belongs to the expert grid: it follows from the others."""

    tp: int = 0
    cp: int = 0
    ep: int = 0
    dp: int = 0
    pp: int = 0


@dataclass(frozen=True)
class Layout:
    """Sizes of all kinds of parallelism, and the order in which they number the ranks.

    Attributes:
        tensor: ranks that share every tensor.
        context: ranks that share every sequence.
        expert: ranks that share the experts of a layer; they are taken from the data-parallel (and tensor, context) ranks.
        data: replicas of the model.
        pipeline: stages.
        order: axes, fastest first; Megatron's default, or ``tp-cp-ep-pp-dp`` with its flag ``--use-tp-pp-dp-mapping``.
        expert_tensor: tensor parallelism inside experts; None: like ``tensor``.

    Raises:
        UserError: sizes or an order that Megatron would refuse.
    """

    tensor: int = 1
    context: int = 1
    expert: int = 1
    data: int = 1
    pipeline: int = 1
    order: str = "tp-cp-ep-dp-pp"
    expert_tensor: int | None = None

    def __post_init__(self) -> None:
        for axis, name in NAMES.items():
            if getattr(self, name) < 1:
                raise UserError(f"{name} parallel size must be at least 1, not {getattr(self, name)}")
            if axis not in self._given_axes and getattr(self, name) > 1:
                raise UserError(f"order '{self.order}' lacks {axis}, but the {name} parallel size is {getattr(self, name)}: add {axis}")
        if not set(self._given_axes) <= set(AXES) or len(set(self._given_axes)) < len(self._given_axes):
            raise UserError(f"order '{self.order}' must name each of {', '.join(AXES)} at most once, joined by '-'")
        if self._expert_tensor < 1:
            raise UserError(f"expert tensor parallel size must be at least 1, not {self._expert_tensor}")
        self._check_expert_grid()

    def _check_expert_grid(self) -> None:
        share = self._expert_tensor * self.expert * self.pipeline
        if self.world_size % share:
            raise UserError(
                f"{self.world_size} ranks cannot be divided into expert groups of {share} "
                f"(expert tensor {self._expert_tensor} x expert {self.expert} x pipeline {self.pipeline}): change the expert or data size"
            )
        if self.has_expert_grid and self.groups("pp") != self.groups("pp", expert_grid=True):
            raise UserError(f"order '{self.order}' gives experts other pipelines than attention: end it with pp")

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.tensor * self.context * self.data * self.pipeline

    @property
    def has_expert_grid(self) -> bool:
        """Whether experts are divided differently from attention."""
        return self.expert > 1 or self._expert_tensor != self.tensor

    @property
    def _expert_tensor(self) -> int:
        return self.tensor if self.expert_tensor is None else self.expert_tensor

    @property
    def _given_axes(self) -> list[str]:
        return self.order.lower().split("-")

    def coordinates(self, rank: int) -> Coordinates:
        """Coordinates of ``rank``. Raises IndexError outside the world."""
        if not 0 <= rank < self.world_size:
            raise IndexError(f"rank {rank} of a world of {self.world_size}")
        place = _place(rank, self._attention_grid)
        expert = _place(rank, self._expert_grid)["ep"]
        return Coordinates(tp=place["tp"], cp=place["cp"], ep=expert, dp=place["dp"], pp=place["pp"])

    def rank(self, coordinates: Coordinates) -> int:
        """The rank at ``coordinates``; ``ep`` is not needed and not looked at. Raises IndexError outside the grid."""
        rank, stride = 0, 1
        for axis, size in self._attention_grid.items():
            at = 0 if axis == "ep" else getattr(coordinates, axis)
            if not 0 <= at < size:
                raise IndexError(f"{axis} coordinate {at} of {size}")
            rank += at * stride
            stride *= size
        return rank

    def groups(self, axes: str, *, expert_grid: bool = False) -> list[list[int]]:
        """Groups of ranks that differ in these axes only, in Megatron's order.

        Args:
            axes: one or several axes joined by ``-``, such as ``tp`` or ``dp-cp``, in any order.
            expert_grid: look at the expert grid, where ``tp`` and ``dp`` mean expert tensor and expert data; always so with ``ep``.
        """
        wanted = axes.split("-")
        if not set(wanted) <= set(AXES):
            raise ValueError(f"axes '{axes}' must be among {', '.join(AXES)}")
        grid = self._expert_grid if expert_grid or "ep" in wanted else self._attention_grid
        strides, stride = {}, 1
        for axis, size in grid.items():
            strides[axis] = stride
            stride *= size

        def offsets(inside: bool) -> list[int]:
            chosen = [axis for axis in reversed(grid) if (axis in wanted) == inside]
            steps = product(*(range(grid[axis]) for axis in chosen))  # the last factor, the fastest axis, varies fastest
            return [sum(at * strides[axis] for at, axis in zip(place, chosen, strict=True)) for place in steps]

        members = offsets(inside=True)
        return [[first + offset for offset in members] for first in offsets(inside=False)]

    @cached_property
    def _attention_grid(self) -> dict[Axis, int]:
        return self._grid({"tp": self.tensor, "cp": self.context, "dp": self.data, "pp": self.pipeline, "ep": 1})

    @cached_property
    def _expert_grid(self) -> dict[Axis, int]:
        data = self.world_size // (self._expert_tensor * self.expert * self.pipeline)
        return self._grid({"tp": self._expert_tensor, "cp": 1, "ep": self.expert, "dp": data, "pp": self.pipeline})

    def _grid(self, sizes: dict[Axis, int]) -> dict[Axis, int]:
        """Sizes in the order of the axes, fastest first; axes that the order leaves out have size 1."""
        ordered: dict[Axis, int] = {axis: sizes[axis] for given in self._given_axes for axis in AXES if axis == given}
        return ordered | {axis: size for axis, size in sizes.items() if axis not in ordered}

    def lockstep_groups(self) -> list[list[int]]:
        """Ranks that run in lock-step because they communicate inside every operation, each group sorted.

        These are the tensor- and context-parallel ranks of one stage of one replica; replicas that exchange tokens between
        experts join into one group. Groups are ordered by replica, then stage, like the units of a graph.
        """
        return self._lockstep[0]

    @property
    def lockstep_replicas(self) -> int:
        """Lock-step groups per stage: ``data``, or fewer with expert parallelism."""
        return len(self.lockstep_groups()) // self.pipeline

    def lockstep_index(self, rank: int) -> int:
        """Index of the rank's group in :meth:`lockstep_groups`."""
        return self._lockstep[1][rank]

    @cached_property
    def _lockstep(self) -> tuple[list[list[int]], list[int]]:
        label = list(range(self.world_size))  # smallest rank that is known to be in the same group
        joining = self.groups("tp-cp") + (self.groups("tp-ep") if self.has_expert_grid else [])
        changed = True
        while changed:
            changed = False
            for group in joining:
                smallest = min(label[rank] for rank in group)
                for rank in group:
                    changed |= label[rank] != smallest
                    label[rank] = smallest
        members: dict[int, list[int]] = {}
        for rank, smallest in enumerate(label):
            members.setdefault(smallest, []).append(rank)
        places = {smallest: self.coordinates(smallest) for smallest in members}
        ordered = sorted(members, key=lambda smallest: (places[smallest].dp, places[smallest].pp))
        index = {smallest: i for i, smallest in enumerate(ordered)}
        return [members[smallest] for smallest in ordered], [index[smallest] for smallest in label]


def _place(rank: int, grid: Mapping[Axis, int]) -> dict[Axis, int]:
    place: dict[Axis, int] = {}
    for axis, size in grid.items():
        rank, place[axis] = divmod(rank, size)
    return place
