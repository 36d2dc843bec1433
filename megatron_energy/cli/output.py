"""What the planning commands print, and where they write."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from megatron_energy.errors import UserError
from megatron_energy.planning.plan import Plan, Segment, UnitPlan

SHOWN_SEGMENTS = 16
"""A stage with more segments (the policy ``operations``) is cut short in the text; the file has all of them."""

NARROWEST = 72
"""Columns that the tables need; on a narrower terminal the terminal breaks the lines."""


def check_writable(path: str, what: str = "plan", option: str = "--out") -> None:
    """Find out before a long search that its result, a ``what`` that goes where ``option`` says, cannot be written.

    Raises:
        UserError: it cannot.
    """
    target = Path(path)
    try:
        if target.is_dir():
            raise UserError(f"cannot write the {what} {path}: it is a folder; give {option} a file")
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise UserError(f"cannot write the {what} {path}: {error.strerror}; choose another {option}") from error


def summary_of(plan: Plan, interpolated_mhz: Sequence[int] = ()) -> dict[str, Any]:
    """The figures of a plan for --json; ``interpolated_mhz``: its clocks that the profile has not measured."""
    e = plan.expected
    return {
        "policy": plan.policy,
        "p2p": plan.schedule.p2p,
        "gpus": plan.gpus,
        "iteration_s": e.iteration_s,
        "energy_j": e.energy_j,
        "baseline_iteration_s": e.baseline_iteration_s,
        "baseline_energy_j": e.baseline_energy_j,
        "deadline_s": e.deadline_s,
        "saved_percent": e.saved_percent,
        "slowdown_percent": e.slowdown_percent,
        "bound_saved_percent": e.bound_saved_percent,
        "bound_share_percent": e.bound_share_percent,
        "limit_saved_percent": e.limit_saved_percent,
        "switches_per_gpu_mean": plan.switches_mean,
        "switches_per_gpu_max": plan.switches_max,
        "solve_s": plan.solve_s,
        "interpolated_clocks_mhz": list(interpolated_mhz),
        "emulated": bool(plan.provenance.get("emulated", False)),
    }


def print_plan(plan: Plan, interpolated_mhz: Sequence[int] = (), path: str | None = None) -> None:
    """A short text for people: figures, then the clocks of every stage.

    Args:
        plan: what to print.
        interpolated_mhz: clocks of the plan that the profile has not measured.
        path: where the plan was written.
    """
    console = Console(highlight=False)
    console.width = max(console.width, NARROWEST)
    s = plan.schedule
    chunks = f" x {s.chunks} chunks" if s.interleaved else ""
    pipeline = f"{_counted(s.stages, 'stage')}{chunks}, {_counted(s.microbatches, 'microbatch')}, p2p {s.p2p}"
    console.print(f"[bold]{plan.policy}[/bold] plan for {_counted(plan.gpus, 'GPU')}: {pipeline}")
    if plan.provenance.get("emulated"):
        console.print("All figures are emulated: the profile was learned on emulated GPUs.")
    console.print()
    console.print(_figures(plan))
    console.print()
    for line in _facts(plan, interpolated_mhz):
        console.print(line)
    console.print()
    console.print(_clocks(plan, console.width))
    if path is not None:
        console.print()
        console.print(f"written to {path}", soft_wrap=True)


def _counted(count: int, noun: str) -> str:
    plural = noun + ("es" if noun.endswith("ch") else "s")
    return f"{count} {noun if count == 1 else plural}"


def _figures(plan: Plan) -> Table:
    e = plan.expected
    table = Table(box=None, pad_edge=False)
    for heading in ("", "baseline", "plan", "change"):
        table.add_column(heading, justify="right" if heading else "left")
    slowdown = f"{_signed(e.slowdown_percent, 3)}%"
    if plan.straggler > 1:  # the slower replica decides when the iteration ends
        straggler_s = plan.straggler * e.baseline_iteration_s
        table.add_row("this replica ends, s", _seconds(e.baseline_iteration_s), _seconds(e.iteration_s))
        table.add_row("all replicas end, s", _seconds(straggler_s), _seconds(max(e.iteration_s, straggler_s)), slowdown)
    else:
        table.add_row("iteration, s", _seconds(e.baseline_iteration_s), _seconds(e.iteration_s), slowdown)
    table.add_row("energy, J", f"{e.baseline_energy_j:,.1f}", f"{e.energy_j:,.1f}", f"{_signed(-e.saved_percent, 2)}%")
    return table


def _signed(percent: float, digits: int) -> str:
    return f"{round(percent, digits) + 0.0:+.{digits}f}"  # adding zero turns -0.0 into 0.0


def _seconds(time_s: float) -> str:
    return f"{time_s:.4f}" if time_s >= 0.1 else f"{time_s:.4g}"


def _facts(plan: Plan, interpolated_mhz: Sequence[int]) -> list[str]:
    e = plan.expected
    lines = []
    if plan.slowdown or plan.straggler > 1:
        lines.append(f"deadline {_seconds(e.deadline_s)} s: straggler {plan.straggler:g} x (1 + slowdown {plan.slowdown:g}) x baseline")
    if e.bound_saved_percent is not None:
        share = f"; {e.bound_share_percent:.1f}% of it reached" if e.bound_share_percent is not None else ""
        lines.append(f"bound: at this deadline no plan saves more than {e.bound_saved_percent:.2f}%{share}")
    if e.limit_saved_percent is not None:
        lines.append(f"limit: no plan with {plan.max_switches} switches saves more than {e.limit_saved_percent:.2f}%")
    lines.append(f"switches per GPU and iteration: {plan.switches_mean:.1f} mean, {plan.switches_max} at most")
    if interpolated_mhz:
        shown = ", ".join(str(mhz) for mhz in interpolated_mhz)
        lines.append(f"interpolated between measured clocks: {shown} MHz")
    return lines


def _clocks(plan: Plan, width: int) -> Table:
    """One row per stage (or its ranks that are alike): the clock at the begin of the iteration, then every change."""
    labels = [f"{unit.stage} (ranks {unit.ranks})" if unit.ranks else str(unit.stage) for unit in plan.units]
    taken = max(5, *map(len, labels)) + 9  # by the first two columns and what keeps the columns apart
    place = "chunk.microbatch" if plan.schedule.interleaved else "microbatch"
    table = Table(box=None, pad_edge=False)
    table.add_column("stage", justify="right")
    table.add_column("MHz", justify="right")
    table.add_column(f"then, from forward (F) or backward (B) {place} on", no_wrap=True)
    for label, unit in zip(labels, plan.units, strict=True):
        first_mhz, changes = _changes(unit)
        table.add_row(label, str(first_mhz), _columns(changes, plan.schedule.interleaved, width - taken))
    return table


def _changes(unit: UnitPlan) -> tuple[int, tuple[Segment, ...]]:
    """(clock of the first operation, segments that begin later): the last segment goes on into the next iteration."""
    first = unit.segments[0]
    if (first.kind, first.chunk, first.microbatch) == ("forward", 0, 0):
        return first.clock_mhz, unit.segments[1:]
    changes = unit.segments if len(unit.segments) > 1 else ()
    return unit.segments[-1].clock_mhz, changes


def _columns(segments: Sequence[Segment], interleaved: bool, width: int) -> str:
    """``F0.3 1290`` per segment, aligned, as many side by side as fit."""
    shown = [(_place(s, interleaved), s.clock_mhz) for s in segments[:SHOWN_SEGMENTS]]
    if not shown:
        return ""
    longest = max(len(place) for place, _ in shown)
    cells = [f"{place:<{longest}} {clock_mhz:>4}" for place, clock_mhz in shown]
    per_line = max(1, (width + 2) // (len(cells[0]) + 2))
    lines = ["  ".join(cells[i : i + per_line]) for i in range(0, len(cells), per_line)]
    if len(segments) > SHOWN_SEGMENTS:
        lines.append(f"... {len(segments) - SHOWN_SEGMENTS} more")
    return "\n".join(lines)


def _place(segment: Segment, interleaved: bool) -> str:
    if segment.kind in ("forward", "backward"):
        chunk = f"{segment.chunk}." if interleaved else ""
        return f"{segment.kind[0].upper()}{chunk}{segment.microbatch}"
    return segment.kind
