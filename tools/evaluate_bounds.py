"""Tables of what depends on no search: the bound in every communication mode, a clock per operation, and plans made for other modes."""

import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
from evaluation import Request, Sheet, Update, keys_of, points, slower
from program_lp import least_energy_j
from published import BOUND_CASES, PLAIN, Case, cases
from real_clocks import least_energy_j as least_at_real_clocks_j

from megatron_energy.pipeline.graph import IntArray
from megatron_energy.pipeline.schedule import P2P_MODES, P2pMode
from megatron_energy.planning.bound import Bound, bound
from megatron_energy.planning.operations import per_operation
from megatron_energy.planning.problem import Problem

REAL_MODES: tuple[P2pMode, ...] = tuple(mode for mode in P2P_MODES if mode != "ideal")
STRAGGLER = 1.2


@cache
def solved(folder: Path, case: Case, p2p: P2pMode) -> tuple[Problem, Bound]:
    """A case and its bound."""
    problem = case.problem(folder, p2p)
    return problem, bound(problem)


def _bounds(request: Request) -> Iterator[Update]:
    for case in BOUND_CASES:
        key = keys_of(case)
        if not request.wants_row(key):
            continue
        begin_s, values, apart = time.process_time(), {}, [0.0]
        for mode in P2P_MODES:
            problem, found = solved(request.folder, case, mode)
            saved = problem.saved_percent(found.energy_j)
            apart.append(100 * found.gap_j / problem.baseline_energy_j)
            apart.append(abs(problem.saved_percent(least_energy_j(problem, case.schedule(mode))) - saved))
            values[mode] = f"{saved:.2f}"
        yield key, {**values, "proof": f"{max(apart):.0e}", "s": f"{time.process_time() - begin_s:.1f}"}


BOUNDS = Sheet(("case",), (*P2P_MODES, "proof", "s"), [keys_of(case) for case in BOUND_CASES], _bounds)


def moved(clocks: IntArray, source: Problem, target: Problem) -> IntArray:
    """Clock columns of the same operations on another graph; 0 for joins."""
    row = {(v.unit, v.kind, v.chunk, v.microbatch): i for i, v in enumerate(source.graph.vertices)}
    places = [row.get((v.unit, v.kind, v.chunk, v.microbatch), -1) for v in target.graph.vertices]
    return np.array([0 if place < 0 else clocks[place] for place in places], dtype=np.int64)


def _ideal_in_modes(request: Request) -> Iterator[Update]:
    for case in (case for case in BOUND_CASES if case.chunks > 1):
        key = keys_of(case)
        if not request.wants_row(key):
            continue
        problem, found = solved(request.folder, case, "ideal")
        clocks = per_operation(problem, found)
        values = {"ideal": f"{problem.evaluate(clocks).saved_percent:.2f} at {slower(0.0)}"}
        for mode in REAL_MODES:
            real, least = solved(request.folder, case, mode)
            late = real.evaluate(moved(clocks, problem, real))
            values[mode] = f"{late.saved_percent:.2f} at {slower(late.slowdown_percent)}"
            values[f"{mode}: bound"] = f"{real.saved_percent(least.energy_j):.2f}"
        yield key, values


IDEAL_IN_MODES = Sheet(
    ("case",),
    ("ideal", *(name for mode in REAL_MODES for name in (mode, f"{mode}: bound"))),
    [keys_of(case) for case in BOUND_CASES if case.chunks > 1],
    _ideal_in_modes,
)


def _operations(request: Request) -> Iterator[Update]:
    for case in BOUND_CASES:
        key = keys_of(case)
        if not request.wants_row(key):
            continue
        values, slowdowns, begin_s = {}, [], time.process_time()
        for mode in case.modes:
            problem, found = solved(request.folder, case, mode)
            plan = problem.evaluate(per_operation(problem, found))
            values[mode] = f"{plan.saved_percent:.2f} ({points(plan.saved_percent - problem.saved_percent(found.energy_j))})"
            slowdowns.append(plan.slowdown_percent)
        yield key, {**values, "slowdown, most": f"{max(0.0, *slowdowns):.3f}%", "s": f"{time.process_time() - begin_s:.1f}"}


OPERATIONS = Sheet(("case",), (*P2P_MODES, "slowdown, most", "s"), [keys_of(case) for case in BOUND_CASES], _operations)


FAR: tuple[tuple[Case, P2pMode], ...] = (
    *((case, "batched") for case in cases("GPT-3", (2, 32), (2, 48))),
    *((Case("GPT-3", 4, 16), mode) for mode in ("overlap-wait", "batched")),
    (Case("GPT-3", 4, 32), "batched"),
)
"""Some of the cases and modes whose plans with a clock per operation are about 0.1 point below the bound, or further."""


def _real_clocks(request: Request) -> Iterator[Update]:
    for case, mode in FAR:
        key = keys_of(case, mode)
        if not request.wants_row(key):
            continue
        begin_s = time.process_time()
        problem, found = solved(request.folder, case, mode)
        clocks = per_operation(problem, found)
        saved, least_j = problem.saved_percent(found.energy_j), least_at_real_clocks_j(problem, clocks)
        yield (
            key,
            {
                "plan": points(problem.evaluate(clocks).saved_percent - saved),
                "proven limit": points(problem.saved_percent(least_j) - saved),
                "s": f"{time.process_time() - begin_s:.1f}",
            },
        )


REAL_CLOCKS = Sheet(("case", "p2p"), ("plan", "proven limit", "s"), [keys_of(*row) for row in FAR], _real_clocks)


def _straggler_bounds(request: Request) -> Iterator[Update]:
    for case in PLAIN:
        key = keys_of(case)
        if request.wants_row(key):
            problem = case.problem(request.folder, straggler=STRAGGLER)
            found = bound(problem)
            plan = problem.evaluate(per_operation(problem, found))
            yield (
                key,
                {
                    "bound": f"{problem.saved_percent(found.energy_j):.2f}",
                    "proof": f"{100 * found.gap_j / problem.baseline_energy_j:.0e}",
                    "operations": f"{plan.saved_percent:.2f}",
                    "slowdown": f"{max(0.0, plan.slowdown_percent):.3f}%",
                },
            )


STRAGGLER_BOUNDS = Sheet(("case",), ("bound", "proof", "operations", "slowdown"), [keys_of(case) for case in PLAIN], _straggler_bounds)
