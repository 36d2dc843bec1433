"""Tables of plans with few switches: their share of the bound, and what is proven of any plan with so few switches."""

import time
from collections.abc import Iterator

from evaluate_bounds import STRAGGLER, solved
from evaluation import Request, Sheet, Update, keys_of
from published import LARGE_CASES, PLAIN, SEARCH_CASES, Case

from megatron_energy.errors import UserError
from megatron_energy.pipeline.graph import IntArray
from megatron_energy.planning.bound import Bound, bound
from megatron_energy.planning.policies import solve
from megatron_energy.planning.problem import Evaluation, Problem
from megatron_energy.planning.segments import Effort, few_switches
from megatron_energy.planning.sequences import clocked_vertices, count_switches

SWITCHES = (2, 3, 4, 6, 8, 12)
COLUMNS = tuple(f"K {switches}" for switches in SWITCHES)
DEFAULT_SWITCHES = 8
CASES = (*SEARCH_CASES, *LARGE_CASES)
ROWS = [
    keys_of(case, mode)
    for case in sorted(CASES, key=lambda case: (case.model != "GPT-3", case.chunks, case.microbatches))
    for mode in case.modes
]


def searched(problem: Problem, found: Bound, switches: int, effort: str) -> Evaluation:
    """A plan with few switches, once it has been checked.

    Raises:
        UserError: as of :func:`checked`.
    """
    return checked(problem, solve(problem, "segments", max_switches=switches, effort=effort, found=found).clocks, switches)


def checked(problem: Problem, clocks: IntArray, switches: int) -> Evaluation:
    """What a plan costs.

    Raises:
        UserError: it is late or switches too often; a fault of the planner.
    """
    plan = problem.evaluate(clocks)
    most = max(count_switches(clocks[member]) for member in clocked_vertices(problem))
    if most > switches or plan.slowdown_percent > 0:
        raise UserError(f"a plan for {switches} switches has {most} and takes {plan.slowdown_percent}% longer: report this as a bug")
    return plan


def _wanted(request: Request) -> Iterator[tuple[tuple[str, ...], str, int, Problem, Bound]]:
    """(row, column, switches, problem, its bound) of every cell to compute; the columns of most interest first."""
    for column, switches in sorted(zip(COLUMNS, SWITCHES, strict=True), key=lambda pair: pair[1] not in (DEFAULT_SWITCHES, 4)):
        for case in CASES:
            for mode in case.modes:
                key = keys_of(case, mode)
                if not request.wants(key, column):
                    continue
                problem, found = solved(request.folder, case, mode)
                yield key, column, switches, problem, found


def _segments(request: Request) -> Iterator[Update]:
    for key, column, switches, problem, found in _wanted(request):
        begin_s = time.process_time()
        plan = searched(problem, found, switches, request.effort)
        share = 100 * plan.saved_percent / problem.saved_percent(found.energy_j)
        yield key, {column: f"{share:.2f} ({time.process_time() - begin_s:.0f} s)"}


SEGMENTS = Sheet(("case", "p2p"), COLUMNS, ROWS, _segments)


def _limits(request: Request) -> Iterator[Update]:
    effort = Effort(rounds=1, time_s=10.0, proof_rounds=400, proof_s=request.limit_s)
    for key, column, switches, problem, found in _wanted(request):
        least_j = few_switches(problem, found, switches, effort).limit_energy_j
        assert least_j is not None
        yield key, {column: f"{100 * problem.saved_percent(least_j) / problem.saved_percent(found.energy_j):.2f}"}


LIMITS = Sheet(("case", "p2p"), COLUMNS, ROWS, _limits)


HIGH = {
    (Case(model, chunks, microbatches), switches): sketch
    for model, chunks, microbatches, switches, sketch in (
        ("GPT-3", 1, 12, 8, "93.97 (96.1)"),
        ("GPT-3", 1, 16, 8, "93.87 (96.3)"),
        ("GPT-3", 1, 24, 8, "93.53 (97.1)"),
        ("GPT-3", 1, 48, 8, "93.89 (98.7)"),
        ("GPT-3", 2, 16, 8, "96.91 (99.4)"),
        ("GPT-3", 2, 48, 8, "96.35 (98.8)"),
        ("Bloom", 2, 16, 8, "95.78 (99.1)"),
        ("GPT-3", 1, 12, 4, "88.90 (90.6)"),
        ("GPT-3", 2, 16, 4, "93.80 (97.4)"),
        ("Bloom", 2, 16, 4, "91.03 (96.7)"),
    )
}
"""(case, switches) of searches that take minutes, with what an earlier search reached (and proved)."""


def _high(request: Request) -> Iterator[Update]:
    for case, switches in HIGH:
        key = keys_of(case, switches)
        if not request.wants_row(key):
            continue
        problem, found = solved(request.folder, case, "ideal")
        begin_s, least = time.process_time(), problem.saved_percent(found.energy_j)
        solution = solve(problem, "segments", max_switches=switches, effort="high", found=found)
        spent_s = time.process_time() - begin_s
        plan = checked(problem, solution.clocks, switches)
        assert solution.limit_energy_j is not None
        yield (
            key,
            {
                "share of the bound": f"{100 * plan.saved_percent / least:.2f}",
                "proven limit": f"{100 * problem.saved_percent(solution.limit_energy_j) / least:.2f}",
                "s": f"{spent_s:.0f}",
                "an earlier search (its limit)": HIGH[case, switches],
            },
        )


HIGH_EFFORT = Sheet(
    ("case", "K"), ("share of the bound", "proven limit", "s", "an earlier search (its limit)"), [keys_of(*row) for row in HIGH], _high
)


def _straggler(request: Request) -> Iterator[Update]:
    for case in PLAIN:
        key = keys_of(case)
        if not request.wants_row(key):
            continue
        problem = case.problem(request.folder, straggler=STRAGGLER)
        found, begin_s = bound(problem), time.process_time()
        plan = searched(problem, found, DEFAULT_SWITCHES, request.effort)
        least = problem.saved_percent(found.energy_j)
        yield (
            key,
            {
                "bound": f"{least:.2f}",
                "proof": f"{100 * found.gap_j / problem.baseline_energy_j:.0e}",
                "segments, K 8": f"{plan.saved_percent:.2f}",
                "share of the bound": f"{100 * plan.saved_percent / least:.2f}",
                "s": f"{time.process_time() - begin_s:.0f}",
            },
        )


STRAGGLERS = Sheet(("case",), ("bound", "proof", "segments, K 8", "share of the bound", "s"), [keys_of(case) for case in PLAIN], _straggler)
