"""Many choices of clocks, replayed and priced together."""

import numpy as np

from megatron_energy.pipeline.graph import FloatArray, IntArray
from megatron_energy.pipeline.replay import makespans
from megatron_energy.planning.problem import TIME_TOLERANCE, Problem

BATCH_NUMBERS = 1 << 21
"""Durations that are replayed at once: 16 MiB, which stays in cache better than larger batches."""


def evaluate_all(problem: Problem, states: IntArray) -> tuple[FloatArray, FloatArray]:
    """Replay many choices of clocks.

    Args:
        problem: graph, tables and deadline.
        states: (B, n) clock columns.

    Returns:
        (B,) iteration times in s, and (B,) energies in J of one GPU per unit.
    """
    count, n = states.shape
    rows = np.arange(n)
    iteration_s, effective_j = np.empty(count), np.empty(count)
    size = max(1, BATCH_NUMBERS // max(n, 1))
    for first in range(0, count, size):
        part = states[first : first + size]
        iteration_s[first : first + size] = makespans(problem.graph, problem.tables.time_s[rows, part].T)
        effective_j[first : first + size] = problem.cost_j[rows, part].sum(axis=1)
    return iteration_s, effective_j + problem.horizon_power_w * np.maximum(iteration_s, problem.earliest_horizon_s)


def in_time(problem: Problem, iteration_s: FloatArray) -> FloatArray:
    """(B,) whether each iteration time keeps the deadline (within rounding)."""
    return np.asarray(iteration_s <= problem.deadline_s * (1 + TIME_TOLERANCE))


def cheapest_in_time(problem: Problem, states: IntArray) -> int:
    """Index of the (B, n) states' cheapest that keeps the deadline, the first among equals; the baseline's clocks should be one of them.

    Raises:
        ValueError: none keeps the deadline.
    """
    iteration_s, energy_j = evaluate_all(problem, states)
    kept = in_time(problem, iteration_s)
    if not kept.any():
        raise ValueError("no choice of clocks keeps the deadline")
    return int(np.where(kept, energy_j, np.inf).argmin())
