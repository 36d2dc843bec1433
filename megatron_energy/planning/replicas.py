"""Classes of replicas: those whose GPUs are alike, stage by stage, are planned once.

A *replica* here is one pipeline of lock-step units; data-parallel replicas that expert parallelism joins count as one. Ten thousand GPUs
whose replicas are all alike make one class, and a plan for them is as large as one for a single replica.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from megatron_energy.errors import UserError
from megatron_energy.parallel.layout import Layout
from megatron_energy.profiles.ranks import COMMUNICATION, RankProfiles

MOST_CLASSES = 8
"""Classes of replicas that are planned apart. The time of a search grows with their number; a class more tells less and less."""


@dataclass(frozen=True, slots=True)
class UnitKind:
    """What a lock-step unit is made of: (profile, GPUs of one unit) for every kind of GPU in it, the fastest first."""

    members: tuple[tuple[int, int], ...]

    @property
    def gpus(self) -> int:
        """GPUs of one unit."""
        return sum(count for _, count in self.members)


@dataclass(frozen=True)
class ReplicaClass:
    """Replicas that are planned as one.

    Attributes:
        units: what each stage's unit is made of.
        ranks: per stage and kind of GPU (in the order of ``units``), the ranks of all replicas that follow its plan.
        replicas: how many there are.
    """

    units: tuple[UnitKind, ...]
    ranks: tuple[tuple[tuple[int, ...], ...], ...]
    replicas: int


def stage_of_rank(layout: Layout) -> list[int]:
    """Pipeline stage of every rank."""
    return [layout.coordinates(rank).pp for rank in range(layout.world_size)]


def replica_classes(layout: Layout, profiles: RankProfiles, most: int = MOST_CLASSES) -> list[ReplicaClass]:
    """Group the replicas of a job, the largest class first.

    Where there are more than ``most`` different ones, replicas about as fast as each other share a class: at every stage it has the slowest
    unit of any of them, so that its plan is late for none. Energy is then counted as if all of them were that slow.

    Args:
        layout: the ranks.
        profiles: of every rank.
        most: classes at most.

    Raises:
        UserError: the profiles are for another number of ranks.
    """
    if len(profiles.profile_of_rank) != layout.world_size:
        raise UserError(f"profiles of {len(profiles.profile_of_rank)} GPUs do not fit a job of {layout.world_size} ranks")
    order = _Order(profiles)
    stages = layout.pipeline
    groups = layout.lockstep_groups()
    replicas: dict[tuple[UnitKind, ...], list[list[list[int]]]] = defaultdict(list)
    for first in range(0, len(groups), stages):
        ranks_by_stage = groups[first : first + stages]
        key = tuple(order.unit_kind(stage, ranks) for stage, ranks in enumerate(ranks_by_stage))
        replicas[key].append(ranks_by_stage)
    bundles = _bundles(order, sorted(replicas, key=order.replica_slowness), most)
    classes = [_replica_class(order, keys, replicas) for keys in bundles]
    # By what they are, not by their ranks: which of the replicas is the slow one makes no difference to the search.
    return sorted(classes, key=lambda one: (-one.replicas, order.replica_slowness(one.units), [unit.members for unit in one.units]))


class _Order:
    """How slow profiles, units and replicas are: seconds at the highest clock, all operations of a stage added."""

    def __init__(self, profiles: RankProfiles) -> None:
        self.profiles = profiles
        self._slowness: dict[tuple[int, int], float] = {}

    def slowness(self, stage: int, profile: int) -> float:
        key = stage, profile
        if key not in self._slowness:
            curves = self.profiles.profiles[profile].curves
            self._slowness[key] = sum(
                float(c.time_s[0]) for (at, _, name), c in curves.items() if at == stage and name not in COMMUNICATION
            )
        return self._slowness[key]

    def unit_kind(self, stage: int, ranks: Sequence[int]) -> UnitKind:
        counts = Counter(self.profiles.profile_of_rank[rank] for rank in ranks)
        return UnitKind(tuple(sorted(counts.items(), key=lambda item: (self.slowness(stage, item[0]), item[0]))))

    def unit_slowness(self, stage: int, unit: UnitKind) -> float:
        return self.slowness(stage, unit.members[-1][0])

    def replica_slowness(self, units: Sequence[UnitKind]) -> tuple[float, ...]:
        """The slowest stage decides, then the next: replicas that sort together are slow alike."""
        return tuple(sorted((self.unit_slowness(stage, unit) for stage, unit in enumerate(units)), reverse=True))


_Key = tuple[UnitKind, ...]
_Replicas = dict[_Key, list[list[list[int]]]]


def _bundles(order: _Order, keys: list[_Key], most: int) -> list[list[_Key]]:
    """At most ``most`` lists of classes; neighbours in slowness together, cut where they differ most."""
    if len(keys) <= most:
        return [[key] for key in keys]
    slowness_s = np.array([order.replica_slowness(key) for key in keys])
    gaps_s = np.abs(np.diff(slowness_s, axis=0)).max(axis=1)
    cuts = np.sort(np.argsort(-gaps_s, kind="stable")[: most - 1]) + 1
    return [keys[a:b] for a, b in zip([0, *cuts.tolist()], [*cuts.tolist(), len(keys)], strict=True)]


def _replica_class(order: _Order, keys: Sequence[_Key], replicas: _Replicas) -> ReplicaClass:
    """One class for all replicas of these kinds, as slow at every stage as the slowest of them."""
    stages = range(len(keys[0]))
    units = tuple(max((key[stage] for key in keys), key=lambda unit: order.unit_slowness(stage, unit)) for stage in stages)
    ranks: list[tuple[tuple[int, ...], ...]] = []
    for stage in stages:
        slots: list[list[int]] = [[] for _ in units[stage].members]
        for key in keys:
            for replica in replicas[key]:
                for rank in replica[stage]:
                    slots[_slot(order, stage, units[stage], order.profiles.profile_of_rank[rank])].append(rank)
        ranks.append(tuple(tuple(sorted(slot)) for slot in slots))
    return ReplicaClass(units, tuple(ranks), sum(len(replicas[key]) for key in keys))


def _slot(order: _Order, stage: int, unit: UnitKind, profile: int) -> int:
    """The member of a unit whose clocks a GPU follows: its own kind, else the fastest kind that is no faster than the GPU."""
    kinds = [own for own, _ in unit.members]
    if profile in kinds:
        return kinds.index(profile)
    slower = [slot for slot, own in enumerate(kinds) if order.slowness(stage, own) >= order.slowness(stage, profile)]
    return slower[0] if slower else len(kinds) - 1
