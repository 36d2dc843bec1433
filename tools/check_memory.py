"""Memory of a long run on its home rank: a Markdown table, and exit status 1 where it grows by 1 MiB or more per 10,000 iterations.

    python tools/check_memory.py [--iterations 100000]

One process, one rank, no Megatron: made-up records pass through what a session keeps: coordinator (baseline, plan, guard with
baseline windows, live switch), summaries, journal, TensorBoard's sums, report. 100,000 iterations take about a minute.
"""

import argparse
import dataclasses
import gc
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import itertools

from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.planning.plan import Expectation, Plan, Segment, UnitPlan
from megatron_energy.records.iteration import RankIteration, Span
from megatron_energy.session.control import write_control
from megatron_energy.session.coordinator import Coordinator
from megatron_energy.session.facts import JobFacts, RankFacts
from megatron_energy.session.findings import IterationData
from megatron_energy.session.options import EnergyOptions
from megatron_energy.session.planned import PlannedRun
from megatron_energy.session.reporting import Reporter
from megatron_energy.session.signals import signals_of
from megatron_energy.session.summaries import Standing, summarise

MICROBATCHES = 8
LOG_INTERVAL = 10
SWITCHED_EVERY = 2_000  # iterations between two uses of the live switch
EVALUATED_EVERY = 1_000
MOST_GROWTH_MIB = 1.0  # per 10,000 iterations, after the first 10,000

FACTS = JobFacts((RankFacts(0, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, MICROBATCHES, None, False, False, False),))


class FakePlanner:
    """Has a plan, and makes a safer one of it."""

    def __init__(self) -> None:
        expected = Expectation(0.99, 280.0, 1.0, 300.0, 1.0, 6.7, -1.0, 7.0)
        unit = UnitPlan(0, (Segment("forward", 0, 0, 1200),))
        layout = {"tensor": 1, "context": 1, "expert": 1, "data": 1, "pipeline": 1}
        self.plan = Plan(layout, Schedule(1, MICROBATCHES), "segments", 8, 0.0, expected, (unit,))

    def schedule(self, programs: Any) -> Schedule:
        """Of the plan."""
        return self.plan.schedule

    def microbatches_of_given_plan(self) -> int:
        """Of the plan."""
        return MICROBATCHES

    def given_plan(self, schedule: Schedule, *measured: Any) -> PlannedRun:
        """The plan."""
        return PlannedRun(self.plan, [0])

    def safer(self, planned: PlannedRun, profile: Any) -> PlannedRun:
        """The same plan once more."""
        return PlannedRun(dataclasses.replace(planned.plan), [0], planned.version + 1)


class CountingWriter:
    """In place of TensorBoard's: counts what is written."""

    def __init__(self) -> None:
        self.written = 0

    def __getattr__(self, name: str) -> Any:
        return self._take

    def _take(self, *args: Any, **kwargs: Any) -> None:
        self.written += 1


class LongRun:
    """A session that lasts.

    Args:
        run_dir: RUN_DIR.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        options = EnergyOptions(policy="segments", directory=str(run_dir), plan="plan.json", recheck=200)
        self.said = 0
        self.coordinator = Coordinator(options, FACTS, FakePlanner(), (1410, 1200), self._say)  # type: ignore[arg-type]
        self.reporter = Reporter(options, FACTS, self.coordinator.findings, "title", self._say)
        self.writer = CountingWriter()
        self.iteration = 0
        self._time_s = 0.0
        self._random = random.Random(1)

    def _say(self, line: str) -> None:
        self.said += 1

    def run(self, iterations: int) -> None:
        """So many more."""
        for _ in range(iterations):
            self.iteration += 1
            if self.iteration % EVALUATED_EVERY == 0:
                self._evaluate()
            if self.iteration % SWITCHED_EVERY == 0:
                write_control(self.run_dir, "drop")
            elif self.iteration % SWITCHED_EVERY == 50:
                write_control(self.run_dir, "resume")
            self._train()
            if self.iteration % LOG_INTERVAL == 0:
                self.reporter.write(self.iteration, self.writer)

    def _train(self) -> None:
        directive, planned = self.coordinator.directives[0], self.coordinator.findings.planned
        data = self._data(evaluation=False)
        self.coordinator.advance(data)
        self._report(data, directive.phase, Standing(planned=planned))

    def _evaluate(self) -> None:
        data = self._data(evaluation=True)
        self.coordinator.interrupted()
        self._report(data, "evaluation", Standing())

    def _report(self, data: IterationData, phase: Any, standing: Standing) -> None:
        energies_j = [r.energy_j for r in data.records]
        summary = summarise(self.iteration, phase, data.records, energies_j, ["GPU-0"], FACTS, self.coordinator.findings, standing)
        self.reporter.add(summary, data)

    def _data(self, *, evaluation: bool) -> IterationData:
        """Records of an iteration of about 1 s with 2% noise; one of a hundred is long, and 5% of every thousand are slow."""
        slow = 1.05 if self.iteration % 1_000 < 50 else 1.0
        time_s = slow * max(self._random.gauss(1.0, 0.02), 0.5) * (3.0 if self._random.random() < 0.01 else 1.0)
        begin_s, self._time_s = self._time_s, self._time_s + time_s
        step_s = time_s / (2 * MICROBATCHES)
        spans = [
            Span("forward" if n % 2 else "backward", 0, n // 2, begin_s + n * step_s, begin_s + (n + 1) * step_s, 1200.0)
            for n in range(2 * MICROBATCHES)
        ]
        record = RankIteration(0, self.iteration, begin_s, self._time_s, 300.0 * time_s, spans, [(begin_s, 1200)], evaluation=evaluation)
        return IterationData([record], [[]], signals=signals_of([record]))


def resident_mib() -> float:
    """Resident memory of this process."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=100_000)
    iterations = parser.parse_args().iterations
    found = []
    with tempfile.TemporaryDirectory() as folder:
        run = LongRun(Path(folder))
        print("| iterations | resident, MiB | growth, MiB |\n| --- | --- | --- |")
        while run.iteration < iterations:
            run.run(10_000)
            found.append(resident_mib())
            growth = f"{found[-1] - found[-2]:+.2f}" if len(found) > 1 else ""
            print(f"| {run.iteration:,} | {found[-1]:.1f} | {growth} |", flush=True)
        run.reporter.finish()
    most = max((after - before for before, after in itertools.pairwise(found)), default=0.0)
    windows = run.coordinator.findings.windows.count
    print(f"\n{windows} baseline windows, {run.said} lines said, {run.writer.written:,} points written; at most {most:+.2f} MiB per 10,000")
    return 0 if most < MOST_GROWTH_MIB else 1


if __name__ == "__main__":
    sys.exit(main())
