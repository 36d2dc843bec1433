"""How much energy the planner's policies lose against the true optimum, on problems small enough to try every plan: a Markdown table.

    python tools/evaluate_optimum.py [--problems 50]

Each problem is a small pipeline of random GPUs (seeded), every second one with a permitted slowdown of 5%. Every choice of a clock for
every operation is replayed; the cheapest that keeps the deadline (and, for segments, switches seldom enough) is the optimum. Figures
are points of the baseline's energy, mean and worst.
"""

import argparse
import itertools
import sys
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from megatron_energy.pipeline.build import build_graph
from megatron_energy.pipeline.graph import FloatArray, IntArray
from megatron_energy.pipeline.replay import makespans
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.planning.bound import bound
from megatron_energy.planning.policies import solve
from megatron_energy.planning.problem import TIME_TOLERANCE, Problem
from megatron_energy.profiles.profile import Curve, Profile
from megatron_energy.profiles.tables import build_tables

SHAPES = {
    "plain": (2, 2, 1, 3),
    "plain, longer": (2, 4, 1, 2),
    "interleaved": (2, 2, 2, 2),
    "three stages": (3, 2, 1, 2),
    "one stage": (1, 5, 1, 3),
}
"""Stages, microbatches, chunks, clocks: at most 65,536 plans each."""

BLOCKING_W = 80.0
SWITCHES = (0, 2, 3, 4)


def random_profile(rng: np.random.Generator, stages: int, clocks: int, *, tidy: bool = True) -> Profile:
    """Random stages of one random GPU model; untidy ones are neither smooth nor monotone.

    Tidy ones: a share of the time does not depend on the clock, dynamic power falls with its cube.
    """
    mhz = 1410 - 30 * np.sort(rng.choice(20, clocks, replace=False))
    slower = mhz[0] / mhz
    share, dynamic_w = rng.uniform(0, 0.5), rng.uniform(50, 400)
    curves = {}
    for stage, work_s in enumerate(rng.uniform(0.5, 1.5, stages)):
        for name, factor in (("forward", 1.0), ("backward", 2.0)):
            time_s = factor * work_s * (share + (1 - share) * slower)
            energy_j = time_s * (80 + dynamic_w / slower**3)
            if not tidy:
                time_s, energy_j = time_s * rng.uniform(0.7, 1.4, clocks), energy_j * rng.uniform(0.5, 2, clocks)
            curves[stage, -1, name] = Curve(mhz, time_s, energy_j)
    return Profile(curves, BLOCKING_W)


def small_problem(shape: str, seed: int, *, tidy: bool = True, **settings: Any) -> Problem:
    """A problem that can be enumerated; ``settings`` are those of Problem."""
    stages, microbatches, chunks, clocks = SHAPES[shape]
    graph = build_graph(Schedule(stages, microbatches, chunks, p2p="ideal" if chunks == 1 else "overlap"))
    profile = random_profile(np.random.default_rng(seed), stages, clocks, tidy=tidy)
    return Problem(graph, build_tables(graph, profile, chunks), BLOCKING_W, **settings)


@cache
def every_plan(shape: str) -> IntArray:
    """(B, n) every choice of clocks; vertices that are no operations keep column 0."""
    problem = small_problem(shape, 0)
    clocks = problem.tables.time_s.shape[1]
    choices = [range(clocks) if v.kind in ("forward", "backward") else (0,) for v in problem.graph.vertices]
    return np.array(list(itertools.product(*choices)), dtype=np.int64)


def time_and_energy(problem: Problem, plans: IntArray) -> tuple[FloatArray, FloatArray]:
    """((B,) s, (B,) J, one GPU per unit): operations, and blocking power while units wait until the end (or the straggler's end)."""
    rows = np.arange(plans.shape[1])
    time_s, energy_j = problem.tables.time_s[rows, plans], problem.tables.energy_j[rows, plans]
    length_s = makespans(problem.graph, time_s.T)
    end_s = np.maximum(length_s, problem.straggler_s if problem.straggler > 1 else 0.0)
    waiting_s = len(problem.graph.units) * end_s - time_s.sum(axis=1)
    return length_s, energy_j.sum(axis=1) + problem.blocking_power_w * waiting_s


def most_switches(problem: Problem, plans: IntArray) -> IntArray:
    """(B,) changes of the clock around the iteration, of the unit with the most."""
    worst = np.zeros(len(plans), dtype=np.int64)
    for chain in problem.graph.chains:
        own = plans[:, [v for v in chain.tolist() if problem.graph.vertices[v].kind in ("forward", "backward")]]
        worst = np.maximum(worst, (own != np.roll(own, 1, axis=1)).sum(axis=1))
    return worst


def optimum_j(problem: Problem, shape: str, max_switches: int | None = None) -> float:
    """Least energy of all plans that keep the deadline."""
    plans = every_plan(shape)
    length_s, energy_j = time_and_energy(problem, plans)
    allowed = length_s <= problem.deadline_s * (1 + TIME_TOLERANCE)
    if max_switches is not None:
        allowed &= most_switches(problem, plans) <= max_switches
    return float(energy_j[allowed].min())


def energy_of(problem: Problem, clocks: IntArray) -> float:
    """Joules of a plan.

    Raises:
        ValueError: it misses the deadline.
    """
    length_s, energy_j = time_and_energy(problem, clocks[np.newaxis])
    if length_s[0] > problem.deadline_s * (1 + TIME_TOLERANCE):
        raise ValueError(f"the plan takes {length_s[0]} s, the deadline is {problem.deadline_s} s")
    return float(energy_j[0])


def lost_points(problem: Problem, policy: str, shape: str, max_switches: int | None = None) -> float:
    """Points of the baseline's energy that a policy's plan uses more than the optimum."""
    clocks = solve(problem, policy, max_switches=max_switches or 0).clocks
    return 100 * (energy_of(problem, clocks) - optimum_j(problem, shape, max_switches)) / problem.baseline_energy_j


COLUMNS = ("plans", "bound below optimum", "operations", *(f"segments ({k})" for k in SWITCHES), "roles", "stages", "uniform")


def row(shape: str, problems: int) -> dict[str, str]:
    """Cells of one pipeline: mean and worst of so many problems."""
    lost: dict[str, list[float]] = {column: [] for column in COLUMNS[1:]}
    for seed in range(problems):
        problem = small_problem(shape, seed, slowdown=0.05 * (seed % 2))
        gap_j = optimum_j(problem, shape) - bound(problem).energy_j
        lost[COLUMNS[1]].append(100 * gap_j / problem.baseline_energy_j)
        for policy in ("operations", "roles", "stages", "uniform"):
            lost[policy].append(lost_points(problem, policy, shape))
        for k in SWITCHES:
            lost[f"segments ({k})"].append(lost_points(problem, "segments", shape, k))
    cells = {column: f"{np.mean(values):.3f} / {max(values):.3f}" for column, values in lost.items()}
    return {COLUMNS[0]: f"{len(every_plan(shape)):,}", **cells}


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=50, help="random problems per row (default: 50)")
    options = parser.parse_args(arguments)
    print(f"| pipeline | {' | '.join(COLUMNS)} |")
    print(f"| --- |{' ---: |' * len(COLUMNS)}")
    for shape in SHAPES:
        print(f"| {' | '.join([shape, *row(shape, options.problems).values()])} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
