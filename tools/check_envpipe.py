"""EnvPipe against its published emulation, and that it always ends; tools/evaluate_published.py has the full tables.

    python tools/check_envpipe.py [--data FOLDER] [--profiles 1000]

FOLDER (default: MEGATRON_ENERGY_DATA) holds the published profiles; without it only the random profiles are run. Exit status 1 if the
published figures are not met within 0.5 points, or if a run does not end within the proven number of steps.
"""

import argparse
import csv
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from megatron_energy.pipeline.build import build_graph
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.planning.envpipe import EMULATION, PUBLISHED, Settings, least_energy_columns, outer_envelope, reconfigure
from megatron_energy.planning.envpipe_warmup import against, extra_forwards, with_extra_forwards
from megatron_energy.planning.problem import Evaluation, Problem
from megatron_energy.profiles.files import load_profile
from megatron_energy.profiles.profile import Curve, Profile
from megatron_energy.profiles.tables import Tables, build_tables

MODELS = ("gpt3-175b", "bloom")
MICROBATCHES = (12, 24, 48, 96)
BLOCKING_W = 83.64  # of a waiting A100-80G (Perseus, SOSP'24)
TOLERANCE_POINTS = 0.5
GREEDY_MICROBATCHES = 24  # beyond, the greedy method takes minutes


def published_problem(data: Path, model: str, microbatches: int) -> Problem:
    """Eight stages of plain 1F1B, eight GPUs each."""
    profile = load_profile(data / "stage_profile" / f"{model}+a100_sxm_bf16.csv", 10)
    graph = build_graph(Schedule(8, microbatches, p2p="ideal"))
    return Problem(graph, build_tables(graph, profile), BLOCKING_W, gpus_per_unit=8)


def published_energy_j(data: Path) -> dict[tuple[str, int], float]:
    """Energy of 64 GPUs by model and microbatches."""
    with (data / "envpipe_result.csv").open(encoding="utf-8") as handle:
        rows = [row for row in csv.DictReader(handle) if row["device"] == "a100_sxm"]
    return {(row["model"], int(row["num_microbatches"])): float(row["energy"]) for row in rows}


def told(found: Evaluation) -> str:
    """Saving and slowdown in percent; adding zero turns -0.0 into 0.0."""
    return f"{found.saved_percent:.2f} @ {round(found.slowdown_percent, 2) + 0.0:.2f}"


def with_stages(problem: Problem, sources: Sequence[int]) -> Problem:
    """The same plain pipeline where stage s has the times and energies of stage ``sources[s]``."""
    row_of = {(v.unit, v.kind, v.microbatch): row for row, v in enumerate(problem.graph.vertices)}
    rows = np.array([row_of[sources[v.unit], v.kind, v.microbatch] for v in problem.graph.vertices])
    tables = Tables(problem.tables.clock_mhz, problem.tables.time_s[rows], problem.tables.energy_j[rows])
    return Problem(problem.graph, tables, problem.blocking_power_w, problem.gpus_per_unit)


def warmed_up(plain: Problem, memory: int | None) -> tuple[list[int], Evaluation]:
    """Further forwards per stage that fit into a memory, and what EnvPipe saves with them."""
    extra = extra_forwards(plain, memory)
    other = with_extra_forwards(plain, extra)
    return extra, against(plain, other, reconfigure(other, PUBLISHED).clocks)


def compare(data: Path) -> bool:
    """Print the published figures beside ours; whether all of them are met."""
    print("| model | microbatches | published, saved % | emulation: saved % @ slowdown %, steps |")
    print("|---|---|---|---|")
    met = True
    energy_j = published_energy_j(data)
    for model in MODELS:
        for microbatches in MICROBATCHES:
            problem = published_problem(data, model, microbatches)
            published = 100 * (1 - energy_j[model, microbatches] / (problem.gpus_per_unit * problem.baseline_energy_j))
            outcome = reconfigure(problem, EMULATION)
            found = problem.evaluate(outcome.clocks)
            met &= abs(found.saved_percent - published) <= TOLERANCE_POINTS and abs(found.slowdown_percent) < 1e-6
            print(f"| {model} | {microbatches} | {published:.2f} | {told(found)}, {outcome.steps} |", flush=True)
    return met


def random_profile(rng: np.random.Generator, stages: int, clocks: int) -> Profile:
    """Curves without any order in them, over clocks at random distances."""
    clock_mhz = 1410 - 15 * np.sort(rng.choice(40, clocks, replace=False)).astype(np.int64)
    curves = {
        (stage, -1, name): Curve(clock_mhz, rng.uniform(0.1, 3.0, clocks), rng.uniform(0.0, 500.0, clocks))
        for stage in range(stages)
        for name in ("forward", "backward")
    }
    return Profile(curves)


def random_runs(count: int) -> Iterator[tuple[int, int]]:
    """(steps taken, steps that the proof allows) of EnvPipe on random profiles, sizes and settings."""
    for seed in range(count):
        rng = np.random.default_rng(seed)
        stages, microbatches, clocks = (int(rng.integers(1, most + 1)) for most in (8, 16, 12))
        profile = random_profile(rng, stages, clocks)
        graph = build_graph(Schedule(stages, microbatches, p2p="ideal"))
        problem = Problem(graph, build_tables(graph, profile), float(rng.uniform(0, 150)))
        settings = Settings(
            method=rng.choice(["balanced", "greedy"]),
            step_mhz=int(rng.choice([1, 15, 30, 500])),
            least=rng.choice(["iteration", "operation"]),
            path=rng.choice(["longest", "measured"]),
        )
        start = np.where(outer_envelope(problem), 0, least_energy_columns(problem, settings.least))
        yield reconfigure(problem, settings).steps, int(start.sum())


def main() -> int:
    """Run the checks; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("MEGATRON_ENERGY_DATA"), metavar="FOLDER", help="published profiles")
    parser.add_argument("--profiles", type=int, default=1000, metavar="N", help="random profiles (default: 1000)")
    args = parser.parse_args()
    met = True
    if args.data:
        data = Path(args.data) / "perseus_sosp24"
        met = compare(data)
    begin_s = time.perf_counter()
    runs = list(random_runs(args.profiles))
    ended = all(steps <= most for steps, most in runs)
    most_steps = max((steps for steps, _ in runs), default=0)
    print(f"\n{len(runs)} random profiles ended after at most {most_steps} steps, in {time.perf_counter() - begin_s:.1f} s")
    return 0 if met and ended else 1


if __name__ == "__main__":
    sys.exit(main())
