"""The report as a person reads it at the end of a run, in 80 columns."""

from collections.abc import Callable, Sequence
from itertools import groupby

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from megatron_energy.observe.report import Report, ReportRow, aggregate

ROWS_ONE_BY_ONE = 16
"""With more GPUs than this the table has a row per stage (or per node, where all GPUs are of one stage)."""


def print_report(report: Report, console: Console | None = None) -> None:
    """Print the report; ``console`` is for tests and for other outputs than stdout."""
    (console or Console()).print(render_report(report))


def render_report(report: Report) -> RenderableType:
    """The report for rich: heading, the job, the GPUs, and the files to look at."""
    emulated = "emulated " if report.emulated else ""
    heading = Text(f"\nEnergy of {len(report.gpus)} {emulated}GPUs, policy {report.facts.policy}", style="bold", overflow="fold")
    parts: list[RenderableType] = [heading, _job_table(report)]
    if report.gpus:
        parts.append(_gpu_table(report))
    parts.extend(_files(report))
    return Group(*parts)


def _job_table(report: Report) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for name in (f"baseline ({report.baseline_iterations})", f"plan ({report.planned_iterations})", "change", "plan expects"):
        table.add_column(name, justify="right", no_wrap=True)
    facts, total = report.facts, report.total
    table.add_row(
        "iteration time, s",
        _number(report.baseline_s, ".4f"),
        _number(report.planned_s, ".4f"),
        _number(report.slowdown_percent, "+.2f", "%"),
        _number(facts.expected_time_s, ".4f"),
    )
    saved = total.saved_percent
    table.add_row(
        "energy, J per iteration",
        _number(total.baseline_j, ",.1f"),
        _number(total.planned_j, ",.1f"),
        _number(None if saved is None else -saved, "+.2f", "%"),
        _number(facts.expected_energy_j, ",.1f"),
    )
    change_w = 100 * (total.planned_w / total.baseline_w - 1) if total.planned_w is not None and total.baseline_w else None
    table.add_row("mean power, W", _number(total.baseline_w, ",.0f"), _number(total.planned_w, ",.0f"), _number(change_w, "+.2f", "%"), "")
    table.caption_justify = "left"
    table.caption = "\n".join(_sentences(report))
    table.caption_style = ""
    return table


def _sentences(report: Report) -> list[str]:
    facts = report.facts
    lines = []
    if not report.baseline_iterations:
        lines.append("No baseline window ran, so nothing can be said about savings.")
    if not report.planned_iterations:
        lines.append("No iteration ran under a plan.")
    if report.total.saved_percent is not None and report.slowdown_percent is not None:
        line = f"Saved {report.total.saved_percent:.2f}% at {report.slowdown_percent:+.2f}% time"
        if report.bound_share_percent is not None:
            line += f": {report.bound_share_percent:.0f}% of the bound ({facts.bound_saved_percent:.2f}%)"
        lines.append(line + ".")
    if facts.switches_mean is not None and facts.switches_max is not None:
        lines.append(f"Clock switches per GPU and iteration: {facts.switches_mean:.1f} mean, {facts.switches_max} max.")
    if report.total.late_raises:
        lines.append(f"{report.total.late_raises} raises of a clock came into force too late.")
    return lines


def _gpu_table(report: Report) -> Table:
    one_by_one = len(report.gpus) <= ROWS_ONE_BY_ONE
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    table.add_column("node" if one_by_one else "GPUs", overflow="fold")  # the one column that gives way in a narrow terminal
    for name in ("GPU", "stage") if one_by_one else ("count",):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("baseline\nJ", "plan\nJ", "saved\n%", "power\nW", "clock\nMHz", "waits\n%", "clock\nrequests"):
        table.add_column(name, justify="right", no_wrap=True)
    if one_by_one:
        _add_single_rows(table, report.gpus)
    else:
        _add_group_rows(table, report.gpus)
    table.add_section()
    labels = ("all", "", "") if one_by_one else ("all", str(len(report.gpus)))
    table.add_row(*labels, *_cells(report.total), style="bold")
    return table


def _add_single_rows(table: Table, rows: Sequence[ReportRow]) -> None:
    for node, members in groupby(rows, key=lambda row: _place(row, "node")):
        table.add_section()
        for position, row in enumerate(members):
            table.add_row("" if position else node, _place(row, "gpu"), _place(row, "stage"), *_cells(row))


def _add_group_rows(table: Table, rows: Sequence[ReportRow]) -> None:
    stages = sorted({int(_place(row, "stage")) for row in rows})
    key: Callable[[ReportRow], str]
    if len(stages) > 1:
        groups, key = [str(stage) for stage in stages], lambda row: _place(row, "stage")
    else:
        groups, key = sorted({_place(row, "node") for row in rows}), lambda row: _place(row, "node")
    for group in groups:
        members = [row for row in rows if key(row) == group]
        table.add_row(f"stage {group}" if len(stages) > 1 else group, str(len(members)), *_cells(aggregate(members)))


def _place(row: ReportRow, name: str) -> str:
    return str(row.gpu[name]) if row.gpu else ""


def _cells(row: ReportRow) -> list[str]:
    return [
        _number(row.baseline_j, ",.0f"),
        _number(row.planned_j, ",.0f"),
        _number(row.saved_percent, ".2f"),
        _number(row.baseline_w if row.planned_w is None else row.planned_w, ",.0f"),
        _number(row.planned_mhz, ".0f"),
        _number(row.waiting_percent, ".1f"),
        _number(row.requests, ".1f"),
    ]


def _files(report: Report) -> list[RenderableType]:
    facts = report.facts
    named = (("TensorBoard", facts.tensorboard_dir), ("plan", facts.plan_path), ("time line", facts.timeline_path))
    # One path per line and never cut, so that it can be copied from the terminal.
    return [Text(f"{name + ':':<13}{path}", overflow="fold") for name, path in named if path is not None]


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else f"{value:{form}}{unit}"
