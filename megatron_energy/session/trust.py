"""Whether a profile or a plan explains what was measured: a plan is only as good as its model of the iteration."""

import math
from dataclasses import dataclass, replace

from megatron_energy.pipeline.graph import FloatArray, Graph
from megatron_energy.pipeline.replay import replay
from megatron_energy.session.learning import LearningError

TIME_PERCENT = 1.0
"""A replayed baseline further than this from the measured one is no ground for a plan that promises not to be slower."""

ENERGY_PERCENT = 2.0
"""Likewise; more, as the counter's steps leave up to half a percent of uncertainty in a window of a few iterations."""

BISECTIONS = 30


@dataclass(frozen=True)
class Baseline:
    """An iteration at untouched clocks: seconds, and joules of all GPUs."""

    time_s: float
    energy_j: float


def fitted_transfer_s(unit_graph: Graph, duration_s: FloatArray, measured_s: float, least_s: float) -> float:
    """Seconds of one p2p transfer with which the replayed baseline takes as long as the measured one.

    Waits show only the part of a transfer that computation does not cover, so the shortest wait (``least_s``) is a lower estimate.

    Args:
        unit_graph: of the schedule, built with a transfer time of 1 s.
        duration_s: (n,) baseline durations of its vertices.
        measured_s: iteration time.
        least_s: lower estimate; the result where the replay is already as long as the measurement.
    """

    def replayed_s(transfer_s: float) -> float:
        return replay(replace(unit_graph, lag_s=unit_graph.lag_s * transfer_s), duration_s).makespan_s

    low, high = least_s, max(2 * least_s, 1e-3 * measured_s)
    if len(unit_graph.units) == 1 or replayed_s(low) >= measured_s * (1 - 1e-6):
        return low
    while replayed_s(high) < measured_s:
        high *= 2
        if high > measured_s:
            return low  # transfers are not what is missing
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if replayed_s(middle) < measured_s else (low, middle)
    return low


def check_baseline(made: str, expected: Baseline, measured: Baseline) -> str:
    """What is left unexplained of the measured baseline, for the user.

    Args:
        made: what the expectation comes from, such as "the learned profile".
        expected: by replay.
        measured: mean of the baseline window; NaN J where no counter answered.

    Raises:
        LearningError: too much for a plan.
    """
    if math.isnan(measured.energy_j):
        raise LearningError(
            f"{made} cannot be compared with the run, as the baseline's energy was not measured: it is shorter than the steps of an "
            "energy counter (give more --energy-baseline-iterations), or a counter did not answer"
        )
    time_percent, energy_percent = _excess(measured.time_s, expected.time_s), _excess(measured.energy_j, expected.energy_j)
    unexplained = f"unexplained of the measured baseline: {time_percent:+.2f}% of its time, {energy_percent:+.2f}% of its energy"
    if not (abs(time_percent) <= TIME_PERCENT and abs(energy_percent) <= ENERGY_PERCENT):
        raise LearningError(f"{made} does not explain the run ({unexplained}), so it is no ground for a plan")
    return unexplained


def _excess(measured: float, expected: float) -> float:
    """In percent of the expectation; infinite where nothing is expected."""
    return 100 * (measured / expected - 1) if expected > 0 else math.inf
