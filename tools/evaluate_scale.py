"""Tables of time and memory: large jobs, the frontier, and lowtime on the same problems."""

import dataclasses
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import bench_planner
import numpy as np
from evaluate_bounds import solved
from evaluation import Request, Sheet, Update, keys_of
from published import BLOCKING_W, FILES, SCALE, Case

from megatron_energy.pipeline import replay
from megatron_energy.planning.frontier import Point, frontier
from megatron_energy.planning.problem import Problem

POINTS = 50
FRONTIER_ROWS = [
    (case, mode)
    for case in (Case("GPT-3", 1, 12), Case("GPT-3", 2, 16), Case("Bloom", 2, 16))
    for mode in case.modes
    if mode in ("ideal", "overlap")
]


def replay_error(problem: Problem, point: Point) -> float:
    """How far, relatively, time and energy of a point are from a replay of its clocks by other code."""
    rows = np.arange(len(problem.graph.vertices))
    duration_s, energy_j = problem.tables.time_s[rows, point.clocks], problem.tables.energy_j[rows, point.clocks]
    time_s = replay.replay(problem.graph, duration_s).makespan_s
    replayed_j = replay.energy_j(problem.graph, duration_s, energy_j, problem.blocking_power_w)
    return float(max(abs(time_s / point.iteration_s - 1), abs(replayed_j / point.energy_j - 1)))


def dominated(points: tuple[Point, ...]) -> int:
    """How many points another one beats: it takes no longer and uses no more."""
    return sum(b.iteration_s <= a.iteration_s or b.energy_j >= a.energy_j for a, b in pairwise(points))


def _frontier(request: Request) -> Iterator[Update]:
    for case, mode in FRONTIER_ROWS:
        key = keys_of(case, mode)
        if not request.wants_row(key):
            continue
        problem, _ = solved(request.folder, case, mode)
        begin_s = time.process_time()
        found = frontier(problem, POINTS)
        taken_s = time.process_time() - begin_s
        below = max(problem.saved_percent(p.bound_j) - problem.saved_percent(p.energy_j) for p in found.points)
        yield (
            key,
            {
                "points": f"{len(found.points)}",
                "CPU s": f"{taken_s:.1f}",
                "beaten by another": f"{dominated(found.points)}",
                "replay off by, most": f"{max(replay_error(problem, point) for point in found.points):.0e}",
                "below its bound, points, most": f"{below:.3f}",
                "time": f"1 to {found.points[-1].iteration_s / found.points[0].iteration_s:.3f}",
                "energy": f"1 to {found.points[-1].energy_j / found.points[0].energy_j:.3f}",
            },
        )


FRONTIER = Sheet(
    ("case", "p2p"),
    ("points", "CPU s", "beaten by another", "replay off by, most", "below its bound, points, most", "time", "energy"),
    [keys_of(case, mode) for case, mode in FRONTIER_ROWS],
    _frontier,
)


def _given(request: Request) -> bench_planner.Input:
    profile = Path("perseus_sosp24", "stage_profile", f"{FILES['GPT-3']}+a100_sxm_bf16.csv")
    return bench_planner.Input(str(request.folder / profile), SCALE, BLOCKING_W)


def _speed(request: Request) -> Iterator[Update]:
    for sizes in bench_planner.GROWTH:
        if request.wants_row((sizes,)):
            yield (sizes,), bench_planner.growth(_given(request), bench_planner.case_of(sizes, "overlap"))


SPEED = Sheet(
    ("S x V x M",),
    (
        "operations", "bound, s", "bound", "proven gap", "per operation, s", "saving", f"{bench_planner.SWITCHES} switches, s",
        "share of the bound", "slowdown", "MiB",
    ),
    [(sizes,) for sizes in bench_planner.GROWTH],
    _speed,
)  # fmt: skip


UNITS_S = (0.01, 0.001)
"""Perseus' artifact has 1 ms on a profile at a tenth of its size, which is 10 ms here; with 1 ms its plans are hardly late."""


def _lowtime(request: Request) -> Iterator[Update]:
    if request.scratch is None:
        return
    python = bench_planner.lowtime_python(request.scratch)
    for unit_s in UNITS_S:
        given = dataclasses.replace(_given(request), unit_s=unit_s)
        for sizes in bench_planner.AGAINST:
            key = (sizes, f"{1000 * unit_s:.0f} ms")
            if request.wants_row(key):
                yield key, bench_planner.compared(given, bench_planner.case_of(sizes, "ideal"), python, request.limit_s)


LOWTIME = Sheet(
    ("S x M", "its unit of time"),
    (
        "lowtime, s", "saving at slowdown (claimed)", "MiB", "ours, s", "saving at slowdown", "bound", "our MiB", "50 points, s", "ratio",
    ),
    [(sizes, f"{1000 * unit_s:.0f} ms") for unit_s in UNITS_S for sizes in bench_planner.AGAINST],
    _lowtime,
)  # fmt: skip
