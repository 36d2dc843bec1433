"""One power cap for all GPUs, as ``nvidia-smi -pl`` sets it: the usual way to save energy without knowing the schedule.

The profile gives the power of every operation at every clock (energy / time). Under a cap each operation runs at the highest clock
whose power is within it. Where power falls with the clock, as it does on real GPUs, that is what the GPU's own power control settles at.
"""

from dataclasses import dataclass

import numpy as np

from megatron_energy.pipeline.graph import FloatArray, IntArray
from megatron_energy.planning.candidates import cheapest_in_time
from megatron_energy.planning.problem import Problem


@dataclass(frozen=True)
class PowerCap:
    """A power cap and what it does.

    Attributes:
        cap_w: W of one GPU.
        clocks: (n,) clock columns under it.
    """

    cap_w: float
    clocks: IntArray


def power_limit(problem: Problem) -> IntArray:
    """(n,) clock columns under the cap of :func:`best_cap`."""
    return best_cap(problem).clocks


def best_cap(problem: Problem) -> PowerCap:
    """The cap with the least energy that keeps the deadline; of caps that do the same, the highest.

    Only caps at which something changes are tried, so none is missed: the powers in the tables, from the least that every operation can
    keep. Where no cap keeps the deadline (the baseline is not at the highest clock), the baseline stands, with the power that it draws.
    """
    power_w = _power_w(problem)
    caps_w, columns, kind_of = _caps(power_w)
    states = np.concatenate([columns[:, kind_of], problem.baseline_clocks[np.newaxis]])
    index = cheapest_in_time(problem, states)
    drawn_w = power_w[np.arange(len(power_w)), states[index]].max(initial=0.0)
    return PowerCap(float(drawn_w) if index == len(caps_w) else float(caps_w[index]), states[index])


def clocks_under(problem: Problem, cap_w: float) -> IntArray:
    """(n,) clock columns under a cap; an operation that draws more at every clock runs at the one where it draws least."""
    return _highest(_power_w(problem), cap_w)


def _power_w(problem: Problem) -> FloatArray:
    """(n, F) W of one GPU; 0 for what takes no time, or does not depend on the clock: no cap can change it."""
    time_s, energy_j = problem.tables.time_s, problem.tables.energy_j
    power_w = np.divide(energy_j, time_s, out=np.zeros_like(energy_j), where=time_s > 0)
    varies = (np.ptp(time_s, axis=1) > 0) | (np.ptp(energy_j, axis=1) > 0)
    return np.where(varies[:, np.newaxis], power_w, 0.0)


def _highest(power_w: FloatArray, cap_w: float) -> IntArray:
    within = power_w <= cap_w
    return np.asarray(np.where(within.any(axis=1), within.argmax(axis=1), power_w.argmin(axis=1)), dtype=np.int64)


def _caps(power_w: FloatArray) -> tuple[FloatArray, IntArray, IntArray]:
    """(C,) caps, highest first; (C, K) columns of K kinds of vertices under each; (n,) kind of every vertex."""
    kinds, kind_of = np.unique(power_w, axis=0, return_inverse=True)
    caps_w = np.unique(kinds)[::-1]
    caps_w = caps_w[caps_w >= kinds.min(axis=1).max()]
    return caps_w, np.stack([_highest(kinds, cap_w) for cap_w in caps_w]), kind_of.reshape(-1)
