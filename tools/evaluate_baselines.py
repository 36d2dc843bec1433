"""Tables that compare with others: simpler policies, EnvPipe, and the frontiers that Perseus' artifact published."""

import csv
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import check_envpipe
import numpy as np
from evaluate_bounds import STRAGGLER, solved
from evaluate_switches import DEFAULT_SWITCHES
from evaluation import Request, Sheet, Update, keys_of, slower
from evaluation_page import Key
from published import FILES, PLAIN, SCALE, SEARCH_CASES, Case

from megatron_energy.planning.bound import BoundProgram
from megatron_energy.planning.envpipe import EMULATION, MEASURED, PUBLISHED, Settings, reconfigure
from megatron_energy.planning.operations import per_operation
from megatron_energy.planning.policies import solve
from megatron_energy.planning.problem import Evaluation, Problem

POLICIES = ("uniform", "power-limit", "stages", "roles", "envpipe")
SEGMENTS = f"segments, K {DEFAULT_SWITCHES}"


def cell(found: Evaluation) -> str:
    """Saving in percent, and the slowdown if there is one."""
    late = f" at {slower(found.slowdown_percent)}" if abs(found.slowdown_percent) >= 5e-3 else ""
    return f"{found.saved_percent + 0.0:.2f}{late}"


def _baselines(request: Request) -> Iterator[Update]:
    for case in SEARCH_CASES:
        for mode in case.modes:
            key = keys_of(case, mode)
            if not request.wants_row(key):
                continue
            problem, found = solved(request.folder, case, mode)
            values = {"bound": f"{problem.saved_percent(found.energy_j):.2f}"}
            for policy in POLICIES:
                if request.wants(key, policy) and (policy != "envpipe" or case.chunks == 1):
                    values[policy] = cell(problem.evaluate(solve(problem, policy, found=found).clocks))
            if request.wants(key, "operations"):
                values["operations"] = on_page(request, keys_of(case), mode) or cell(problem.evaluate(per_operation(problem, found)))
            share_percent = share_on_page(request, key)
            if share_percent is not None:
                values[SEGMENTS] = f"{share_percent / 100 * problem.saved_percent(found.energy_j):.2f}"
            yield key, values


def share_on_page(request: Request, key: Key) -> float | None:
    """Share of the bound that the page has for plans with few switches: they are not searched for twice."""
    table = request.other("segments")
    if table is None or not table.has(key, f"K {DEFAULT_SWITCHES}"):
        return None
    return float(table.cells[key][f"K {DEFAULT_SWITCHES}"].split()[0])


def on_page(request: Request, key: Key, mode: str) -> str | None:
    """Saving that the page has for a clock per operation, which nobody waits for twice."""
    table = request.other("operations")
    return table.cells[key][mode].split()[0] if table is not None and table.has(key, mode) else None


BASELINES = Sheet(
    ("case", "p2p"),
    (*POLICIES, SEGMENTS, "operations", "bound"),
    [keys_of(case, mode) for case in SEARCH_CASES for mode in case.modes],
    _baselines,
)

GREEDY = Settings("greedy")
ENVPIPE_COLUMNS = {"emulation": EMULATION, "its own estimate of the path": MEASURED, "greedy": GREEDY}
SHIFTED = "slowest stage moved to stage 3"


def moved_stage(problem: Problem, source: int, target: int) -> Problem:
    """The same pipeline with two stages' times and energies exchanged."""
    exchange = {source: target, target: source}
    return check_envpipe.with_stages(problem, [exchange.get(stage, stage) for stage in range(len(problem.graph.units))])


def _envpipe(request: Request) -> Iterator[Update]:
    data = request.folder / "perseus_sosp24"
    energy_j = check_envpipe.published_energy_j(data)
    for case in PLAIN:
        key = keys_of(case)
        if not request.wants_row(key):
            continue
        problem = check_envpipe.published_problem(data, FILES[case.model], case.microbatches)
        published_j = energy_j[FILES[case.model], case.microbatches]
        values = {"published": f"{100 * (1 - published_j / (problem.gpus_per_unit * problem.baseline_energy_j)):.2f}"}
        for column, settings in ENVPIPE_COLUMNS.items():
            if settings is not GREEDY or case.microbatches <= check_envpipe.GREEDY_MICROBATCHES:
                values[column] = cell(problem.evaluate(reconfigure(problem, settings).clocks))
        shifted = moved_stage(problem, len(problem.graph.units) - 1, 3)
        values[SHIFTED] = cell(shifted.evaluate(reconfigure(shifted, PUBLISHED).clocks))
        values[f"{SHIFTED}, its own estimate"] = cell(shifted.evaluate(reconfigure(shifted, MEASURED).clocks))
        yield key, values


ENVPIPE = Sheet(
    ("case",),
    ("published", *ENVPIPE_COLUMNS, SHIFTED, f"{SHIFTED}, its own estimate"),
    [keys_of(case) for case in PLAIN],
    _envpipe,
)

MEMORIES = {"0": 0, "1": 1, "4": 4, "any": None}


def _envpipe_warmup(request: Request) -> Iterator[Update]:
    for case in PLAIN:
        for name, memory in MEMORIES.items():
            key = keys_of(case, name)
            if request.wants_row(key):
                problem = check_envpipe.published_problem(request.folder / "perseus_sosp24", FILES[case.model], case.microbatches)
                extra, found = check_envpipe.warmed_up(problem, memory)
                yield key, {"further forwards per stage": " ".join(map(str, extra)), "saved": cell(found)}


ENVPIPE_WARMUP = Sheet(
    ("case", "memory for"),
    ("further forwards per stage", "saved"),
    [keys_of(case, name) for case in PLAIN for name in MEMORIES],
    _envpipe_warmup,
)


@cache
def claimed(folder: Path, case: Case) -> tuple[np.ndarray, np.ndarray]:
    """(s, J of one GPU per stage) of the published frontier, fastest first, at the profile's real size."""
    path = folder / "perseus_sosp24" / "frontier" / f"{FILES[case.model]}_a100_sxm_mb{case.microbatches}.csv"
    with path.open(encoding="utf-8") as handle:
        rows = sorted((float(row["time"]), float(row["energy"])) for row in csv.DictReader(handle))
    time_s, energy_j = SCALE * np.array(rows).T
    return time_s, energy_j


def _frontier_files(request: Request) -> Iterator[Update]:
    for case in PLAIN:
        key = keys_of(case)
        if not request.wants_row(key):
            continue
        problem, program = case.problem(request.folder), None
        time_s, energy_j = claimed(request.folder, case)
        program = BoundProgram(problem)
        possible = time_s >= problem.iteration_s(problem.tables.time_s.argmin(axis=1))
        bound_j = np.array([program.at(end_s).energy_j for end_s in time_s[possible]])
        apart = 100 * (energy_j[possible] - bound_j) / problem.baseline_energy_j
        end_s = STRAGGLER * problem.baseline_s
        before = int(np.searchsorted(time_s, end_s, side="right")) - 1
        waiting_j = energy_j[before] + problem.horizon_power_w * (end_s - time_s[before])
        late = case.problem(request.folder, straggler=STRAGGLER)
        yield (
            key,
            {
                "points": f"{len(time_s)}",
                "faster than possible": f"{int((~possible).sum())}",
                "below the bound": f"{int((apart < 0).sum())}",
                "above the bound, points: median, most": f"{np.median(apart):.2f}, {apart.max():.2f}",
                "claimed at the 1.2x straggler": f"{late.saved_percent(waiting_j):.2f}",
                "bound there": f"{late.saved_percent(BoundProgram(late).at(late.deadline_s, late.earliest_horizon_s).energy_j):.2f}",
            },
        )


FRONTIER_FILES = Sheet(
    ("case",),
    (
        "points",
        "faster than possible",
        "below the bound",
        "above the bound, points: median, most",
        "claimed at the 1.2x straggler",
        "bound there",
    ),
    [keys_of(case) for case in PLAIN],
    _frontier_files,
)
