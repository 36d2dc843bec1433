"""What an energy counter can tell apart.

A counter advances in steps: what it shows at a moment is what it was at its last step. So the energy of a row of iterations is
known up to one step's energy, whatever their number; relative to the row, that is step / duration. A bound, not a deviation:
GPUs that work in step may all be off by as much.
"""

import math

from megatron_energy.observe.interval import Interval

COUNTER_STEP_S = 0.1
"""NVML's energy counter on A100 and H100 (V100: 0.02 s)."""

READABLE_PERCENT = 20.0
"""Energies known no better than this are not shown."""

SHARE_NEEDS = 4.0
"""A share of the bound is told where the bound is at least so many times what the counter leaves open in the saving."""

LEAST_BOUND_PERCENT = 0.05
"""A bound below this rounds to nothing: there is nothing to have a share of."""


def resolution_percent(interval: Interval, counter_step_s: float) -> float:
    """How far the energy of an interval's training iterations may be off, in percent of itself; infinite where there is no time.

    Args:
        interval: iterations.
        counter_step_s: time between two steps of the energy counter.
    """
    duration_s = interval.iterations * interval.time_s
    return 100 * counter_step_s * interval.stretches / duration_s if duration_s > 0 else math.inf
