"""What ``megatron-energy frontier`` prints and writes."""

import csv
import io
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from megatron_energy.atomic import write_whole
from megatron_energy.cli.job import Job
from megatron_energy.cli.output import NARROWEST
from megatron_energy.errors import UserError
from megatron_energy.planning.frontier import Frontier, Point
from megatron_energy.planning.sequences import clocked_vertices, count_switches

COLUMNS = (
    "point", "deadline_s", "iteration_s", "energy_j", "saved_percent", "slowdown_percent", "bound_energy_j", "bound_saved_percent",
    "price_w", "switches_per_gpu_mean", "switches_per_gpu_max",
)  # fmt: skip
"""Of the CSV file, in order; docs/frontier.md says what they mean."""

SHOWN = 12
"""Rows of the table; the file has all of them."""


def rows_of(found: Frontier) -> list[dict[str, Any]]:
    """The points, fastest first, as plain values; energies of all GPUs."""
    return [{"point": number, **_row(found, point)} for number, point in enumerate(found.points)]


def _row(found: Frontier, point: Point) -> dict[str, Any]:
    problem = found.problem
    evaluation = problem.evaluate(point.clocks)
    switches = [count_switches(point.clocks[member]) for member in clocked_vertices(problem)]
    return {
        "deadline_s": point.deadline_s,
        "iteration_s": point.iteration_s,
        "energy_j": point.energy_j * problem.gpus_per_unit,
        "saved_percent": evaluation.saved_percent,
        "slowdown_percent": evaluation.slowdown_percent,
        "bound_energy_j": point.bound_j * problem.gpus_per_unit,
        "bound_saved_percent": problem.saved_percent(point.bound_j),
        "price_w": point.price_w * problem.gpus_per_unit,
        "switches_per_gpu_mean": float(np.mean(switches)),
        "switches_per_gpu_max": max(switches),
    }


def write_csv(found: Frontier, path: str) -> None:
    """Write the points; a reader never sees half of the file.

    Raises:
        UserError: it cannot be written.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows_of(found))
    try:
        write_whole(path, text.getvalue())
    except OSError as error:
        raise UserError(f"cannot write the frontier {path}: {error.strerror}") from error


def summary_of(found: Frontier, job: Job, policy: str, solve_s: float) -> dict[str, Any]:
    """For --json: the figures of the point that is no slower than the baseline, and all points."""
    problem, rows = found.problem, rows_of(found)
    in_time = rows[found.points.index(found.at(problem.straggler_s))]
    return {
        "policy": policy,
        "p2p": job.schedule.p2p,
        "gpus": len(problem.graph.units) * problem.gpus_per_unit,
        "baseline_iteration_s": problem.baseline_s,
        "baseline_energy_j": problem.baseline_energy_j * problem.gpus_per_unit,
        **{name: value for name, value in in_time.items() if name != "point"},
        "between_points_gap_percent": 100 * found.gap_j / problem.baseline_energy_j,
        "solve_s": solve_s,
        "emulated": bool(job.profile.provenance.get("emulated", False)),
        "points": rows,
    }


def print_frontier(found: Frontier, job: Job, policy: str, solve_s: float) -> None:
    """A short text for people: some of the points, evenly over the numbers."""
    problem, rows = found.problem, rows_of(found)
    console = Console(highlight=False)
    console.width = max(console.width, NARROWEST)
    chunks = f" x {job.schedule.chunks} chunks" if job.schedule.interleaved else ""
    console.print(f"[bold]frontier[/bold] of {len(rows)} plans, policy {policy}, found in {solve_s:.1f} s")
    console.print(f"{job.schedule.stages} stages{chunks}, {job.schedule.microbatches} microbatches, p2p {job.schedule.p2p}")
    if job.profile.provenance.get("emulated"):
        console.print("All figures are emulated: the profile was learned on emulated GPUs.")
    console.print(f"baseline: {problem.baseline_s:.4g} s, {problem.baseline_energy_j * problem.gpus_per_unit:,.1f} J")
    gap_percent = 100 * found.gap_j / problem.baseline_energy_j
    console.print(f"A line between two points' bounds misses the bound by at most {gap_percent:.2f}%.")
    console.print()
    table = Table(box=None, pad_edge=False)
    for heading in ("point", "iteration, s", "slowdown", "energy, J", "saved", "bound", "switches"):
        table.add_column(heading, justify="right")
    for number in np.unique(np.linspace(0, len(rows) - 1, SHOWN).round().astype(int)).tolist():
        table.add_row(*_cells(rows[number]))
    console.print(table)


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        str(row["point"]),
        f"{row['iteration_s']:.4f}" if row["iteration_s"] >= 0.1 else f"{row['iteration_s']:.4g}",
        f"{row['slowdown_percent'] + 0.0:+.2f}%",
        f"{row['energy_j']:,.1f}",
        f"{row['saved_percent']:.2f}%",
        f"{row['bound_saved_percent']:.2f}%",
        f"{row['switches_per_gpu_mean']:.0f}",
    ]
