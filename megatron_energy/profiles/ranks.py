"""Profiles of single GPUs: which GPUs of a job are alike, and which are slower.

GPUs of one model are not equally fast, and a training job waits for the slowest. Most of them are alike, though, so a job of thousands of
GPUs has a handful of profiles::

    ranks = RankProfiles.alike(profile, 16, slower={5: 1.05})    # rank 5 takes 5% longer
    ranks.profile(5), ranks.profile(6)
    ranks = load_rank_profiles("profile.csv", stage_of_rank)     # a column ``rank`` in the file (megatron_energy.profiles.files)
    ranks.rounded(stage_of_rank, 0.01)                           # GPUs within 1% of each other share a profile
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from megatron_energy.errors import UserError
from megatron_energy.profiles.profile import Curve, IntArray, Profile

COMMUNICATION = ("grad-sync", "blocking", "p2p")
"""Instructions that a slower GPU does not take longer for."""


@dataclass(frozen=True)
class RankProfiles:
    """Which profile each GPU of a job has.

    Attributes:
        profiles: the different ones. A GPU uses the curves of its own pipeline stage; a profile need not have others.
        profile_of_rank: index into ``profiles``, by rank.
    """

    profiles: tuple[Profile, ...]
    profile_of_rank: tuple[int, ...]

    @classmethod
    def alike(cls, profile: Profile, world_size: int, slower: Mapping[int, float] | None = None) -> "RankProfiles":
        """All GPUs have one profile; those in ``slower`` take so many times as long, at the same power."""
        return cls((profile,), (0,) * world_size).slowed(slower or {})

    def slowed(self, slower: Mapping[int, float]) -> "RankProfiles":
        """Some ranks take so many times as long, at the same power."""
        profiles, of_rank = list(self.profiles), list(self.profile_of_rank)
        index: dict[tuple[int, float], int] = {}
        for rank, factor in sorted(slower.items(), key=lambda item: (item[1], item[0])):
            if factor != 1.0:
                key = of_rank[rank], factor
                if key not in index:
                    index[key] = len(profiles)
                    profiles.append(stretched(self.profiles[key[0]], factor))
                of_rank[rank] = index[key]
        return RankProfiles(tuple(profiles), tuple(of_rank))

    def profile(self, rank: int) -> Profile:
        """The profile of one GPU."""
        return self.profiles[self.profile_of_rank[rank]]

    def merged(self, stage_of_rank: Sequence[int]) -> "RankProfiles":
        """One profile for all GPUs of a stage: as slow as the slowest of them, with their mean energy."""
        return self._covered(stage_of_rank, lambda _: 0)

    def rounded(self, stage_of_rank: Sequence[int], step: float) -> "RankProfiles":
        """Fewer profiles: GPUs of a stage that are as fast within ``step`` (0.01 is one percent) share one.

        The shared profile is as slow as the slowest of them at every clock, so a plan made with it is not late; its energy is
        their mean.

        Raises:
            UserError: ``step`` is not above zero.
        """
        if not step > 0:
            raise UserError(f"GPUs are rounded in steps above zero, such as 0.01, not {step}")
        return self._covered(stage_of_rank, lambda slowness: math.floor(math.log(slowness) / math.log1p(step) + 1e-9))

    def _covered(self, stage_of_rank: Sequence[int], bin_of: Callable[[float], int]) -> "RankProfiles":
        """GPUs of a stage whose slowness falls into one bin share a profile that covers them."""
        counts = Counter(zip(stage_of_rank, self.profile_of_rank, strict=True))
        bins: dict[tuple[int, int], list[int]] = defaultdict(list)  # stage, bin -> old profiles
        for stage in sorted(set(stage_of_rank)):
            present = sorted(index for at, index in counts if at == stage)
            for index, slowness in zip(present, _slowness([self.profiles[i] for i in present], stage), strict=True):
                bins[stage, bin_of(slowness)].append(index)
        profiles, new = [], {}
        for number, ((stage, _), members) in enumerate(sorted(bins.items())):
            profiles.append(_cover([self.profiles[i] for i in members], [counts[stage, i] for i in members], stage))
            new.update({(stage, index): number for index in members})
        return RankProfiles(tuple(profiles), tuple(new[key] for key in zip(stage_of_rank, self.profile_of_rank, strict=True)))


def stretched(profile: Profile, factor: float) -> Profile:
    """The profile of a GPU whose computations take ``factor`` times as long at the same power; communication does not.

    Raises:
        UserError: ``factor`` is not above zero.
    """
    if not (math.isfinite(factor) and factor > 0):
        raise UserError(f"a GPU's slowness must be above zero (1.05: 5% slower), not {factor}")
    curves = {
        key: curve if key[2] in COMMUNICATION else Curve(curve.clock_mhz, curve.time_s * factor, curve.energy_j * factor)
        for key, curve in profile.curves.items()
    }
    return replace(profile, curves=curves)


def _of_stage(profile: Profile, stage: int) -> dict[tuple[int, int, str], Curve]:
    return {key: curve for key, curve in profile.curves.items() if key[0] == stage}


def _common(curves: Sequence[Curve]) -> list[IntArray]:
    """Columns of every curve at the clocks that all of them have, highest clock first.

    Raises:
        UserError: they have none in common.
    """
    clocks = reduce(np.intersect1d, [curve.clock_mhz for curve in curves], curves[0].clock_mhz)[::-1]  # also sorts where there is one
    if not len(clocks):
        raise UserError("the GPUs of a stage were not measured at any common clock: measure all of them at the same clocks")
    return [len(curve.clock_mhz) - 1 - np.searchsorted(curve.clock_mhz[::-1], clocks) for curve in curves]


def _slowness(profiles: Sequence[Profile], stage: int) -> list[float]:
    """By how much the computations of each profile take longer than the fastest one's, at most; 1 or more."""
    result = np.ones(len(profiles))
    for key in _of_stage(profiles[0], stage):
        if key[2] in COMMUNICATION:
            continue
        curves = [profile.curves[key] for profile in profiles if key in profile.curves]
        if len(curves) < len(profiles):
            raise UserError(f"{key[2]} of stage {stage} was not measured on all of its GPUs: add the missing rows")
        times_s = np.array([curve.time_s[columns] for curve, columns in zip(curves, _common(curves), strict=True)])
        fastest_s = times_s.min(axis=0)
        ratio = np.divide(times_s, fastest_s, out=np.ones_like(times_s), where=fastest_s > 0)
        result = np.maximum(result, ratio.max(axis=1))
    return [float(value) for value in result]


def _cover(profiles: Sequence[Profile], counts: Sequence[int], stage: int) -> Profile:
    """The slowest times and the mean energies of GPUs of one stage; ``counts``: how many GPUs have each profile."""
    curves = {}
    for key in _of_stage(profiles[0], stage):
        found = [profile.curves[key] for profile in profiles]
        columns = _common(found)
        times_s = np.array([curve.time_s[at] for curve, at in zip(found, columns, strict=True)])
        energies_j = np.array([curve.energy_j[at] for curve, at in zip(found, columns, strict=True)])
        mean_j = np.average(energies_j, axis=0, weights=counts)
        curves[key] = Curve(found[0].clock_mhz[columns[0]], times_s.max(axis=0), mean_j)
    return replace(profiles[0], curves=curves)
