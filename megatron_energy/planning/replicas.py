"""Classes of replicas: those whose GPUs are alike, stage by stage, are planned once.

A *replica* here is one pipeline of lock-step units; data-parallel replicas that expert parallelism joins count as one. Ten thousand GPUs
whose replicas are all alike make one class, and a plan for them is as large as one for a single replica.

Where many replicas have a slow GPU somewhere, there are many classes. Then those that differ least share one: at every stage it has the
slowest unit of any of them, so that its plan is late for none of them.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from megatron_energy.errors import UserError
from megatron_energy.parallel.layout import Layout
from megatron_energy.profiles.ranks import COMMUNICATION, RankProfiles

MOST_CLASSES = 8
"""Classes of replicas that are planned apart. The time of a search grows with their number; a class more tells less and less."""


@dataclass(frozen=True, slots=True)
class UnitKind:
    """What a lock-step unit is made of: (profile, GPUs of one unit) for every kind of GPU in it, the fastest first."""

    members: tuple[tuple[int, int], ...]


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


class Slowness:
    """How slow profiles, units and replicas are: seconds at the highest clock, all operations of a stage added."""

    def __init__(self, profiles: RankProfiles) -> None:
        self.profiles = profiles
        self._known_s: dict[tuple[int, int], float] = {}

    def profile_s(self, stage: int, profile: int) -> float:
        """Of one kind of GPU in a stage."""
        key = stage, profile
        if key not in self._known_s:
            curves = self.profiles.profiles[profile].curves
            own = [curve for (at, _, name), curve in curves.items() if at == stage and name not in COMMUNICATION]
            self._known_s[key] = sum(float(curve.time_s[0]) for curve in own)
        return self._known_s[key]

    def units_s(self, units: Sequence[UnitKind]) -> tuple[float, ...]:
        """Per stage, of its slowest GPU."""
        return tuple(self.profile_s(stage, unit.members[-1][0]) for stage, unit in enumerate(units))

    def order(self, one: ReplicaClass) -> tuple[object, ...]:
        """The largest class first; then by what they are, not by their ranks: which replica is slow makes no difference."""
        return -one.replicas, sorted(self.units_s(one.units), reverse=True), [unit.members for unit in one.units]


def replica_classes(layout: Layout, profiles: RankProfiles) -> list[ReplicaClass]:
    """Group the replicas of a job, the largest class first.

    Raises:
        UserError: the profiles are for another number of ranks.
    """
    if len(profiles.profile_of_rank) != layout.world_size:
        raise UserError(f"profiles of {len(profiles.profile_of_rank)} GPUs do not fit a job of {layout.world_size} ranks")
    slowness = Slowness(profiles)
    groups = layout.lockstep_groups()
    replicas: dict[tuple[UnitKind, ...], list[list[list[int]]]] = defaultdict(list)
    for first in range(0, len(groups), layout.pipeline):
        by_stage = groups[first : first + layout.pipeline]
        replicas[tuple(_unit_kind(slowness, stage, ranks) for stage, ranks in enumerate(by_stage))].append(by_stage)
    classes = []
    for units, members in replicas.items():
        ranks: list[tuple[tuple[int, ...], ...]] = []
        for stage, unit in enumerate(units):
            together = [rank for replica in members for rank in replica[stage]]
            ranks.append(tuple(tuple(sorted(r for r in together if profiles.profile_of_rank[r] == own)) for own, _ in unit.members))
        classes.append(ReplicaClass(units, tuple(ranks), len(members)))
    return sorted(classes, key=slowness.order)


def _unit_kind(slowness: Slowness, stage: int, ranks: Sequence[int]) -> UnitKind:
    counts = Counter(slowness.profiles.profile_of_rank[rank] for rank in ranks)
    return UnitKind(tuple(sorted(counts.items(), key=lambda item: (slowness.profile_s(stage, item[0]), item[0]))))


def bundle(
    classes: Sequence[ReplicaClass], profiles: RankProfiles, most: int, in_time: Callable[[Sequence[UnitKind]], bool]
) -> list[ReplicaClass]:
    """Join classes, those first that differ least, until there are no more than ``most`` or nothing more can be joined.

    Args:
        classes: different ones.
        profiles: of every rank.
        most: how many there should be.
        in_time: whether a replica of these units is no slower than the job, all GPUs at their highest clock: a class that would be
            slower than any real replica would put off everybody's end.
    """
    slowness = Slowness(profiles)
    alive = dict(enumerate(classes))
    queue = [(_added_s(slowness, a, b), i, j) for i, a in alive.items() for j, b in alive.items() if i < j]
    heapq.heapify(queue)
    number = len(classes)
    while len(alive) > most and queue:
        _, i, j = heapq.heappop(queue)
        if i not in alive or j not in alive or not in_time(_slowest(slowness, alive[i], alive[j])):
            continue
        joined = _joined(slowness, alive.pop(i), alive.pop(j))
        for other, one in alive.items():
            heapq.heappush(queue, (_added_s(slowness, joined, one), other, number))
        alive[number] = joined
        number += 1
    return sorted(alive.values(), key=slowness.order)


def _slowest(slowness: Slowness, a: ReplicaClass, b: ReplicaClass) -> tuple[UnitKind, ...]:
    stages = zip(a.units, b.units, slowness.units_s(a.units), slowness.units_s(b.units), strict=True)
    return tuple(one if one_s >= other_s else other for one, other, one_s, other_s in stages)


def _added_s(slowness: Slowness, a: ReplicaClass, b: ReplicaClass) -> float:
    """Seconds by which the replicas of both would be planned slower than they are, all stages added."""
    together_s = sum(slowness.units_s(_slowest(slowness, a, b)))
    return sum(one.replicas * (together_s - sum(slowness.units_s(one.units))) for one in (a, b))


def _joined(slowness: Slowness, a: ReplicaClass, b: ReplicaClass) -> ReplicaClass:
    units = _slowest(slowness, a, b)
    ranks: list[tuple[tuple[int, ...], ...]] = []
    for stage, unit in enumerate(units):
        slots: list[list[int]] = [[] for _ in unit.members]
        for one in (a, b):
            for (profile, _), members in zip(one.units[stage].members, one.ranks[stage], strict=True):
                slots[_slot(slowness, stage, unit, profile)] += members
        ranks.append(tuple(tuple(sorted(slot)) for slot in slots))
    return ReplicaClass(units, tuple(ranks), a.replicas + b.replicas)


def _slot(slowness: Slowness, stage: int, unit: UnitKind, profile: int) -> int:
    """The member of a unit whose clocks a GPU follows: its own kind, else the fastest kind that is no faster than the GPU."""
    kinds = [own for own, _ in unit.members]
    if profile in kinds:
        return kinds.index(profile)
    slower = [slot for slot, own in enumerate(kinds) if slowness.profile_s(stage, own) >= slowness.profile_s(stage, profile)]
    return slower[0] if slower else len(kinds) - 1
