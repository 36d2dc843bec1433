"""The guard on made-up iteration times: false alarms, delays, and what it blames. Prints Markdown tables.

    python tools/check_guard.py [--seeds 1000] [--iterations 10000]

Every run is the course of a real session (:mod:`megatron_energy.session.guarded`), fed with times instead of a training. Noise is normal,
and of 100 iterations one takes three times as long. Seeded: the same figures every time. 1,000 seeds take about 15 minutes.
"""

import argparse
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from megatron_energy.session.guard import ALLOWANCE, CLIP, THRESHOLD
from megatron_energy.session.guarded import Guarded, Limits
from tests.session.fake_plans import FakeIteration, FakePlan

LONG_SHARE, LONG_FACTOR = 0.01, 3.0
RECHECK = 500  # planned iterations between two baseline windows: the default
BEFORE = 300  # planned iterations before the slowdown


@dataclass
class Run:
    """What happened in one run.

    Attributes:
        alarms: planned iterations until each comparison with maximum clocks.
        verdicts: planned iterations until each step to a more careful plan.
        planned: iterations under the plan.
        at_maximum: iterations in windows at maximum clocks.
    """

    alarms: list[int] = field(default_factory=list)
    verdicts: list[int] = field(default_factory=list)
    planned: int = 0
    at_maximum: int = 0


def times(seed: int, noise: float, mean_s: float = 1.0) -> Iterator[float]:
    """Iteration times in s, without end."""
    rng = np.random.default_rng(seed)
    while True:
        long = np.where(rng.random(1024) < LONG_SHARE if noise else np.zeros(1024, dtype=bool), LONG_FACTOR, 1.0)
        yield from (mean_s * np.maximum(1 + noise * rng.standard_normal(1024), 0.1) * long).tolist()


def simulate(
    seed: int,
    noise: float,
    baseline: int,
    iterations: int,
    plan_factor: Callable[[int], float] = lambda planned: 1.0,
    job_factor: Callable[[int], float] = lambda planned: 1.0,
    until_verdict: bool = True,
) -> Run:
    """One run.

    Args:
        seed: of the noise.
        noise: standard deviation of an iteration's time, as a fraction.
        baseline: iterations of the first window.
        iterations: under the plan, at most.
        plan_factor: how many times as long an iteration under the plan takes, by their number.
        job_factor: the same of all iterations, those at maximum clocks included.
        until_verdict: end with the first one.
    """
    series, said, run = times(seed, noise), [], Run()
    findings = SimpleNamespace(baseline=[FakeIteration(t) for t in itertools.islice(series, baseline)], planned=None)
    guarded = Guarded(FakePlan(), lambda plan: None, findings, Limits(0.0, RECHECK), 1, said.append)  # type: ignore[arg-type]
    course = guarded.course()
    wanted = next(course)
    for time_s in series:
        directive = wanted[0] if isinstance(wanted, list) else wanted
        if (directive.phase == "maximum" and until_verdict) or run.planned >= iterations:
            return run
        run.at_maximum += directive.phase == "baseline"
        factor = job_factor(run.planned)
        if directive.phase == "planned":
            factor *= plan_factor(run.planned)
            run.planned += 1
        known, comparisons = len(said), guarded.comparisons
        wanted = course.send(FakeIteration(factor * time_s))  # type: ignore[arg-type]
        if guarded.comparisons > comparisons:
            run.alarms.append(run.planned)
        if any(line.startswith(("maximum", "a safer")) for line in said[known:]):
            run.verdicts.append(run.planned)
    return run


def run_length(shift: float, cells: int = 400) -> float:
    """Mean iterations until an alarm, by Brook and Evans' Markov chain, where mean and deviation of the times are known exactly.

    Args:
        shift: of the mean, in deviations.
        cells: of the sum's range.
    """
    width = THRESHOLD / cells
    middle = (np.arange(cells) + 0.5) * width
    middle[0] = 0.0
    edges = np.arange(1, cells + 1) * width

    def below(step: np.ndarray) -> np.ndarray:
        normal = 0.5 * (1 + np.vectorize(math.erf)((step + ALLOWANCE - shift) / math.sqrt(2)))
        mixed = (1 - LONG_SHARE) * normal  # a long iteration adds all that one can
        return np.where(step >= CLIP, 1.0, np.where(step < -CLIP, 0.0, mixed))

    cumulative = below(edges[np.newaxis, :] - middle[:, np.newaxis])
    transition = np.diff(cumulative, axis=1, prepend=0.0)
    return float(np.linalg.solve(np.eye(cells) - transition, np.ones(cells))[0])


def quiet_row(noise: float, baseline: int, seeds: int, iterations: int) -> list[str]:
    """Runs in which nothing is wrong."""
    runs = [simulate(seed, noise, baseline, iterations, until_verdict=False) for seed in range(seeds)]
    wrong, checks = sum(bool(r.verdicts) for r in runs), sum(len(r.alarms) for r in runs)
    share = sum(r.at_maximum for r in runs) / sum(r.planned for r in runs)
    return [f"{100 * noise:g}%", str(baseline), f"{wrong} of {seeds}", f"{checks / seeds:.2f}", f"{100 * share:.2f}%"]


def slow_row(noise: float, baseline: int, slowdown: float, seeds: int, begin: int = BEFORE) -> list[str]:
    """Runs with a slowdown under the plan from some iteration on."""
    found, judged = [], []
    for seed in range(seeds):
        run = simulate(seed, noise, baseline, begin + 400, lambda planned: 1 + slowdown if planned >= begin else 1.0)
        judged.append(next((v - begin for v in run.verdicts if v > begin), 999))
        found.append(next((a - begin for a in run.alarms if a > begin), judged[-1]))  # a comparison may be under way when it begins
    alarm, verdict = np.array(found), np.array(judged)
    return [
        f"{100 * noise:g}%", str(baseline), str(begin), f"{100 * slowdown:g}%",
        *(f"{np.percentile(alarm, q):.0f}" for q in (50, 95, 100)), f"{100 * np.mean(alarm <= 20):.1f}%",
        *(f"{np.percentile(verdict, q):.0f}" for q in (50, 95)),
    ]  # fmt: skip


def drift_row(noise: float, baseline: int, drift: float, seeds: int) -> list[str]:
    """Runs in which all iterations become longer, whatever the clocks."""
    runs = [
        simulate(seed, noise, baseline, BEFORE + 500, job_factor=lambda planned: 1 + drift if planned >= BEFORE else 1.0)
        for seed in range(seeds)
    ]
    blamed = sum(bool(r.verdicts) for r in runs)
    noticed = sum(any(a > BEFORE for a in r.alarms) for r in runs)
    return [f"{100 * noise:g}%", str(baseline), f"{100 * drift:g}%", f"{100 * noticed / seeds:.1f}%", f"{100 * blamed / seeds:.1f}%"]


def table(head: Sequence[str], rows: Iterator[list[str]]) -> None:
    """Print as Markdown, row by row."""
    print("\n| " + " | ".join(head) + " |\n|" + " --- |" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)


def main() -> int:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--iterations", type=int, default=10_000)
    args = parser.parse_args()
    seeds, iterations = args.seeds, args.iterations
    print(f"Mean iterations until an alarm of the sum, mean and deviation known exactly: {run_length(0.0):,.0f} without a slowdown,")
    print(f"{run_length(1.0):.1f} with one of 1 deviation, {run_length(1.5):.1f} with 1.5, {run_length(3.0):.1f} with 3.")
    print(f"\nNothing is wrong, {iterations:,} iterations under the plan:")
    head = ["noise", "baseline", "runs whose plan was given up", "comparisons per run", "iterations in baseline windows"]
    quiet = [(0.02, 64), (0.02, 16), (0.02, 3), (0.005, 3), (0.002, 3), (0.0, 3)]
    table(head, (quiet_row(noise, baseline, seeds, iterations) for noise, baseline in quiet))
    print("\nA slowdown under the plan; iterations under it until clocks go to maximum (alarm), and until the plan is given up (verdict):")
    head = ["noise", "baseline", "begins at", "slowdown", "alarm, median", "95%", "latest", "within 20", "verdict, median", "95%"]
    slow = [(0.02, 64, 0.03), (0.02, 16, 0.03), (0.02, 3, 0.03), (0.01, 3, 0.03), (0.005, 3, 0.03), (0.002, 3, 0.03), (0.002, 3, 0.01),
            (0.0, 3, 0.03), (0.0, 3, 0.006)]  # fmt: skip
    table(head, (slow_row(*case, seeds, begin) for begin in (BEFORE, 0) for case in slow))
    print("\nThe whole job becomes slower, at maximum clocks as well; 500 iterations from then on:")
    head = ["noise", "baseline", "drift", "noticed", "plan given up"]
    table(head, (drift_row(noise, baseline, 0.03, seeds) for noise, baseline in [(0.02, 64), (0.005, 16), (0.0, 3)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
