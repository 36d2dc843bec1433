"""The planner against lowtime on one profile, and how it grows with the job: Markdown tables.

    python tools/bench_planner.py --profile FILE --scratch DIR [--limit 300] [--against 4x8 8x8 8x32] [--growth 8x1x128 16x4x64]

lowtime (the solver of Perseus, SOSP'24) is installed from PyPI into a virtual environment in DIR, kept for the next time; it is no
dependency of ours. Both solve plain 1F1B with data dependencies only: lowtime knows no other. Its plan without slowdown is the last point
of its frontier, so it is timed to its end or to ``--limit`` CPU seconds, after which its fastest plan so far counts. Every plan is
replayed here, at the profile's own times. Times are CPU seconds of one thread, each case in a process of its own.
"""

import argparse
import dataclasses
import json
import resource
import subprocess
import sys
import time
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from megatron_energy.pipeline.build import build_graph
from megatron_energy.pipeline.schedule import P2P_MODES, P2pMode, Schedule
from megatron_energy.planning.frontier import frontier
from megatron_energy.planning.operations import per_operation
from megatron_energy.planning.policies import solve
from megatron_energy.planning.problem import Problem
from megatron_energy.planning.scale import solved_program
from megatron_energy.profiles.files import load_profile
from megatron_energy.profiles.profile import Profile
from megatron_energy.profiles.tables import build_tables

LOWTIME = "lowtime==0.3.0"
AGAINST = ("4x8", "8x8", "8x32")
GROWTH = ("8x1x8", "8x1x32", "8x1x128", "8x1x512", "4x2x16", "8x2x16", "16x2x16", "8x2x64", "8x4x64", "16x4x64", "16x4x128")
SWITCHES = 8


@dataclasses.dataclass(frozen=True)
class Case:
    """One job."""

    stages: int
    chunks: int
    microbatches: int
    p2p: P2pMode

    def __str__(self) -> str:
        return f"S {self.stages}, V {self.chunks}, M {self.microbatches}"


@dataclasses.dataclass(frozen=True)
class Input:
    """What all cases share."""

    profile: str
    scale: float
    blocking_w: float
    unit_s: float = 0.001  # lowtime's unit of time


def stages_of(profile: Profile, count: int) -> Profile:
    """The profile for another number of stages: its first and last stage, and those between them in turn, as often as needed."""
    have = 1 + max(stage for stage, _, _ in profile.curves)
    inner = list(range(1, have - 1)) or [0]
    sources = [0, *(inner[i % len(inner)] for i in range(count - 2)), have - 1][:count]
    curves = {
        (stage, chunk, name): curve
        for stage, source in enumerate(sources)
        for (at, chunk, name), curve in profile.curves.items()
        if at == source
    }
    return dataclasses.replace(profile, curves=curves)


def problem_of(given: Input, case: Case, profile: Profile, microbatches: int | None = None) -> Problem:
    """The planning problem of a case, or of the same with another number of microbatches."""
    graph = build_graph(Schedule(case.stages, microbatches or case.microbatches, case.chunks, p2p=case.p2p))
    return Problem(graph, build_tables(graph, profile, case.chunks), given.blocking_w)


def ours(given: Input, case: Case, points: int, switches: int) -> dict[str, Any]:
    """Bound and a clock per operation; with ``points`` the frontier, with ``switches`` a plan with so few; CPU seconds of each.

    Without ``switches`` memory is measured before anything else is done.
    """
    schedule = Schedule(case.stages, case.microbatches, case.chunks, p2p=case.p2p)
    profile = stages_of(load_profile(given.profile, given.scale), case.stages)
    begin_s = time.process_time()
    program = solved_program(lambda microbatches: problem_of(given, case, profile, microbatches), schedule)
    problem = program.problem
    bound = program.at(problem.deadline_s)
    bound_s = time.process_time()
    plan = problem.evaluate(per_operation(problem, bound, work=0))
    plan_s = time.process_time()
    found = {
        "operations": sum(vertex.kind != "join" for vertex in problem.graph.vertices),
        "bound_s": bound_s - begin_s,
        "plan_s": plan_s - begin_s,
        "gap_percent": 100 * bound.gap_j / problem.baseline_energy_j,
        "bound_percent": problem.saved_percent(bound.energy_j),
        "saved_percent": plan.saved_percent,
        "slowdown_percent": plan.slowdown_percent,
    }
    if switches:
        few = problem.evaluate(solve(problem, "segments", max_switches=switches, found=bound).clocks)
        found |= {"segments_s": time.process_time() - plan_s, "segments_percent": few.saved_percent}
        found["slowdown_percent"] = max(plan.slowdown_percent, few.slowdown_percent)
    found["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if points:
        frontier_s = time.process_time()
        found["points"] = len(frontier(problem, points, program=program).points)
        found["frontier_s"] = time.process_time() - frontier_s
    return found


def in_a_process(given: Input, case: Case, points: int = 0, switches: int = 0) -> dict[str, Any]:
    """:func:`ours` where nothing else has used memory."""
    job = json.dumps([dataclasses.asdict(given), dataclasses.asdict(case), points, switches])
    done = subprocess.run([sys.executable, __file__, "--one", job], check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def lowtime_python(scratch: Path) -> str:
    """The Python of an environment with lowtime, made if it is not there."""
    python = scratch / "lowtime" / "bin" / "python"
    if not python.exists():
        venv.create(scratch / "lowtime", with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", LOWTIME], check=True)
    return str(python)


def lowtime(python: str, given: Input, case: Case, limit_s: float) -> dict[str, Any]:
    """What lowtime finds on the same graph and profile; its last plan is replayed here."""
    problem = problem_of(given, case, stages_of(load_profile(given.profile, given.scale), case.stages))
    rows = np.concatenate([problem.tables.time_s, problem.tables.energy_j], axis=1)
    kinds, kind_of = np.unique(rows, axis=0, return_inverse=True)
    clocks_mhz = problem.tables.clock_mhz
    job = {
        "blocking_w": given.blocking_w,
        "unit_s": given.unit_s,
        "limit_s": limit_s,
        "kinds": [np.column_stack([clocks_mhz, *row.reshape(2, -1)]).tolist() for row in kinds],
        "operations": kind_of.ravel().tolist(),
        "edges": problem.graph.edges.tolist(),
    }
    program = Path(__file__).with_name("bench_lowtime.py")
    done = subprocess.run([python, str(program)], input=json.dumps(job), capture_output=True, text=True, check=False)
    if done.returncode:
        return {"state": f"failed: {done.stderr.strip().splitlines()[-1]}", "solve_s": float("nan"), "peak_mib": float("nan")}
    found: dict[str, Any] = json.loads(done.stdout)
    if found["clocks_mhz"]:
        columns = np.searchsorted(-clocks_mhz, -np.array(found["clocks_mhz"])).astype(np.int64)
        evaluation = problem.evaluate(columns)
        found |= {"saved_percent": evaluation.saved_percent, "slowdown_percent": evaluation.slowdown_percent}
        found["claimed_percent"] = 100 * (found["claimed_s"] / problem.baseline_s - 1)
    return found


def compared(given: Input, case: Case, python: str, limit_s: float) -> dict[str, str]:
    """Time, plan and memory of lowtime, then ours (bound and a clock per operation), and how many times as long it takes."""
    theirs, mine = lowtime(python, given, case, limit_s), in_a_process(given, case, 50)
    more = "> " if theirs["state"] == "stopped" else ""
    saving = theirs["state"]
    if "saved_percent" in theirs:
        saving = f"{theirs['saved_percent']:.2f}% at {theirs['slowdown_percent']:+.2f}% ({theirs['claimed_percent']:+.2f}%)"
    return {
        "lowtime, s": f"{more}{theirs['solve_s']:.1f}",
        "saving at slowdown (claimed)": saving,
        "MiB": f"{theirs['peak_mib']:.0f}",
        "ours, s": f"{mine['plan_s']:.2f}",
        "saving at slowdown": f"{mine['saved_percent']:.2f}% at {mine['slowdown_percent']:+.2f}%",
        "bound": f"{mine['bound_percent']:.2f}%",
        "our MiB": f"{mine['peak_mib']:.0f}",
        "50 points, s": f"{mine['frontier_s']:.1f}",
        "ratio": f"{more}{theirs['solve_s'] / mine['plan_s']:.0f}",
    }


def growth(given: Input, case: Case) -> dict[str, str]:
    """CPU seconds, savings and memory of one job: the bound, a clock per operation, few switches."""
    found = in_a_process(given, case, switches=SWITCHES)
    return {
        "operations": f"{found['operations']:,}",
        "bound, s": f"{found['bound_s']:.2f}",
        "bound": f"{found['bound_percent']:.2f}%",
        "proven gap": f"{found['gap_percent']:.0e}%",
        "per operation, s": f"{found['plan_s'] - found['bound_s']:.2f}",
        "saving": f"{found['saved_percent']:.2f}%",
        f"{SWITCHES} switches, s": f"{found['segments_s']:.1f}",
        "share of the bound": f"{100 * found['segments_percent'] / found['bound_percent']:.1f}%",
        "slowdown": f"{found['slowdown_percent'] + 0.0:.3f}%",
        "MiB": f"{found['peak_mib']:.0f}",
    }


def table(first: str, rows: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Lines of a Markdown table; all rows have the same columns."""
    columns = list(next(iter(rows.values()), {}))
    lines = [[first, *columns], *([name, *cells.values()] for name, cells in rows.items())]
    lines.insert(1, ["---"] * len(lines[0]))
    return [f"| {' | '.join(line)} |" for line in lines]


def case_of(text: str, p2p: P2pMode) -> Case:
    """``8x32`` (S, M) or ``8x2x16`` (S, V, M)."""
    sizes = [int(part) for part in text.split("x")]
    return Case(sizes[0], 1 if len(sizes) == 2 else sizes[1], sizes[-1], p2p if len(sizes) == 3 else "ideal")


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", help="CSV with time and energy per stage, instruction and clock")
    parser.add_argument("--profile-scale", type=float, default=1.0, metavar="X", help="multiply its times and energies")
    parser.add_argument("--blocking-power", type=float, default=83.64, metavar="W", help="default: Perseus' figure for the A100 80 GB")
    parser.add_argument(
        "--scratch", type=Path, metavar="DIR", help="where lowtime's environment is or is to be made; without: no comparison"
    )
    parser.add_argument("--limit", type=float, default=300.0, metavar="S", help="CPU seconds of lowtime in each case (default: 300)")
    parser.add_argument("--unit", type=float, default=0.001, metavar="S", help="lowtime's unit of time (default: 0.001)")
    parser.add_argument("--against", nargs="*", default=AGAINST, metavar="SxM", help="cases to compare in")
    parser.add_argument("--growth", nargs="*", default=GROWTH, metavar="SxVxM", help="cases to show growth with")
    parser.add_argument("--p2p", choices=P2P_MODES, default="overlap", help="of the growth cases (default: overlap)")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.one:
        given, case, points, switches = json.loads(args.one)
        print(json.dumps(ours(Input(**given), Case(**case), points, switches)))
        return
    if args.profile is None:
        parser.error("--profile is required")
    given = Input(args.profile, args.profile_scale, args.blocking_power, args.unit)
    if args.scratch is not None:
        python = lowtime_python(args.scratch)
        against = {name: compared(given, case_of(name, "ideal"), python, args.limit) for name in args.against}
        print("\n".join(table("S x M", against)), end="\n\n", flush=True)
    print("\n".join(table("S x V x M", {name: growth(given, case_of(name, args.p2p)) for name in args.growth})))


if __name__ == "__main__":
    main()
