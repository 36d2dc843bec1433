"""Whether a learned profile explains what was measured: a plan is only as good as its model of the iteration."""

from dataclasses import replace

from megatron_energy.pipeline.graph import FloatArray, Graph
from megatron_energy.pipeline.replay import replay
from megatron_energy.planning.problem import Problem
from megatron_energy.session.learning import LearningError

TIME_PERCENT = 1.0
"""A replayed baseline further than this from the measured one is no ground for a plan that promises not to be slower."""

ENERGY_PERCENT = 2.0
"""Likewise; more, as the counter's steps leave up to half a percent of uncertainty in a window of a few iterations."""

BISECTIONS = 30


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


def check_baseline(problem: Problem, measured_s: float, measured_j: float) -> str:
    """What the profile leaves unexplained of the measured baseline, for the user.

    Args:
        problem: with the learned profile; its baseline is replayed.
        measured_s: mean iteration time of the baseline window.
        measured_j: mean joules of all GPUs.

    Raises:
        LearningError: too much for a plan.
    """
    time_percent = 100 * (measured_s / problem.baseline_s - 1)
    energy_percent = 100 * (measured_j / (problem.baseline_energy_j * problem.gpus_per_unit) - 1)
    unexplained = f"unexplained of the measured baseline: {time_percent:+.2f}% of its time, {energy_percent:+.2f}% of its energy"
    if not (abs(time_percent) <= TIME_PERCENT and abs(energy_percent) <= ENERGY_PERCENT):
        raise LearningError(f"the learned profile does not explain the run ({unexplained}): no plan is made from it")
    return unexplained
