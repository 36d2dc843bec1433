"""The report as a person reads it at the end of a run, in 80 columns."""

from collections.abc import Callable, Sequence
from itertools import groupby

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from megatron_energy.observe.figures import change, figure
from megatron_energy.observe.report import Report
from megatron_energy.observe.report_rows import ReportRow, aggregate
from megatron_energy.observe.report_text import NOTHING, sentences

ROWS_ONE_BY_ONE = 16
"""With more GPUs than this the table has a row per stage (or per node, where all GPUs are of one stage)."""


def print_report(report: Report, console: Console | None = None) -> None:
    """Print the report; ``console`` is for tests and for other outputs than stdout."""
    (console or Console()).print(render_report(report))


def render_report(report: Report) -> RenderableType:
    """The report for rich: heading, the job, the GPUs, and the files to look at."""
    if not report.gpus:
        return Group(Text(f"\n{NOTHING}", overflow="fold"), *_files(report))
    emulated = "emulated " if report.emulated else ""
    heading = Text(f"\nEnergy of {len(report.gpus)} {emulated}GPUs, policy {report.facts.policy}", style="bold", overflow="fold")
    text = Text("\n".join(sentences(report)) + "\n", overflow="fold")
    parts: list[RenderableType] = [heading, _job_table(report), text, _gpu_table(report)]
    parts.extend(_files(report))
    return Group(*parts)


def _job_table(report: Report) -> Table:
    """Figures of the whole job: before, under the plan, and what the plan expects, as far as this run has them."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    columns = _columns(report)
    for name, _ in columns:
        table.add_column(name, justify="right", no_wrap=True)
    labels = ("iteration time, s", "energy, J per iteration", "mean power, W")
    for label, cells in zip(labels, zip(*(cells for _, cells in columns), strict=True), strict=True):
        table.add_row(label, *cells)
    return table


Column = tuple[str, tuple[str, str, str]]
"""Heading; time, energy, power."""


def _columns(report: Report) -> list[Column]:
    facts, total, windows = report.facts, report.total, report.windows
    columns: list[Column] = []
    if report.baseline_iterations or not report.planned_iterations:
        columns.append(
            _measured(
                report, f"{report.baseline_name} ({report.baseline_iterations})", report.baseline_s, total.baseline_j, total.baseline_w
            )
        )
    if report.planned_iterations:
        columns.append(_measured(report, f"plan ({report.planned_iterations})", report.planned_s, total.planned_j, total.planned_w))
        columns.append(_change(report))
    if windows.untouched is not None:
        energy_j = windows.untouched.iteration_energy_j
        power_w = energy_j / windows.untouched.time_s if windows.untouched.time_s > 0 else None
        columns.append(_measured(report, f"dry run ({windows.untouched.iterations})", windows.untouched.time_s, energy_j, power_w))
    if facts.expected_energy_j is not None and facts.expected_time_s is not None:
        expected_w = facts.expected_energy_j / facts.expected_time_s if facts.dry_run else None
        expected = (figure(facts.expected_time_s, ".4f"), figure(facts.expected_energy_j, ",.1f"), _blank(expected_w))
        columns.append(("plan expects", expected))
    return columns


def _measured(report: Report, heading: str, time_s: float | None, energy_j: float | None, power_w: float | None) -> Column:
    shown = report.readable
    return heading, (figure(time_s, ".4f"), figure(energy_j if shown else None, ",.1f"), figure(power_w if shown else None, ",.0f"))


def _change(report: Report) -> Column:
    total, resolution = report.total, report.saved_resolution_percent
    saved = total.saved_percent if report.readable else None
    change_w = 100 * (total.planned_w / total.baseline_w - 1) if total.planned_w is not None and total.baseline_w else None
    cells = (
        figure(report.slowdown_percent, "+.2f", "%"),
        change(None if saved is None else -saved, resolution, "+.2f", "%"),
        change(change_w if report.readable else None, resolution, "+.2f", "%"),
    )
    return "change", cells


def _blank(value: float | None) -> str:
    return "" if value is None else figure(value, ",.0f")


def _gpu_table(report: Report) -> Table:
    one_by_one = len(report.gpus) <= ROWS_ONE_BY_ONE
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    table.add_column("node" if one_by_one else "GPUs", overflow="fold")  # the one column that gives way in a narrow terminal
    for name in ("GPU", "stage") if one_by_one else ("count",):
        table.add_column(name, justify="right", no_wrap=True)
    planned = ("baseline\nJ", "plan\nJ", "saved\n%", "power\nW", "clock\nMHz", "waits\n%", "clock\nrequests")
    for name in planned if report.planned_iterations else ("energy\nJ", "power\nW", "clock\nMHz", "waits\n%"):
        table.add_column(name, justify="right", no_wrap=True)
    (_add_single_rows if one_by_one else _add_group_rows)(table, report)
    table.add_section()
    labels = ("all", "", "") if one_by_one else ("all", str(len(report.gpus)))
    table.add_row(*labels, *_cells(report, report.total), style="bold")
    return table


def _add_single_rows(table: Table, report: Report) -> None:
    for node, members in groupby(report.gpus, key=lambda row: _place(row, "node")):
        table.add_section()
        for position, row in enumerate(members):
            table.add_row("" if position else node, _place(row, "gpu"), _place(row, "stage"), *_cells(report, row))


def _add_group_rows(table: Table, report: Report) -> None:
    rows: Sequence[ReportRow] = report.gpus
    stages = sorted({int(_place(row, "stage")) for row in rows})
    key: Callable[[ReportRow], str]
    if len(stages) > 1:
        groups, key = [str(stage) for stage in stages], lambda row: _place(row, "stage")
    else:
        groups, key = list(dict.fromkeys(_place(row, "node") for row in rows)), lambda row: _place(row, "node")
    for group in groups:
        members = [row for row in rows if key(row) == group]
        table.add_row(f"stage {group}" if len(stages) > 1 else group, str(len(members)), *_cells(report, aggregate(members)))


def _place(row: ReportRow, name: str) -> str:
    return str(row.gpu[name]) if row.gpu else ""


def _cells(report: Report, row: ReportRow) -> list[str]:
    def energy(value: float | None) -> str:
        return figure(value if report.readable else None, ",.0f")

    if not report.planned_iterations:
        return [
            energy(row.baseline_j),
            energy(row.baseline_w),
            figure(row.baseline_mhz, ".0f"),
            figure(row.baseline_waiting_percent, ".1f"),
        ]
    return [
        energy(row.baseline_j),
        energy(row.planned_j),
        change(row.saved_percent if report.readable else None, report.saved_resolution_percent, ".2f"),
        energy(row.planned_w),
        figure(row.planned_mhz, ".0f"),
        figure(row.waiting_percent, ".1f"),
        figure(row.requests, ".1f"),
    ]


def _files(report: Report) -> list[RenderableType]:
    facts = report.facts
    named = (("TensorBoard", facts.tensorboard_dir), ("plan", facts.plan_path), ("time line", facts.timeline_path))
    # One path per line and never cut, so that it can be copied from the terminal.
    return [Text(f"{name + ':':<13}{path}", overflow="fold") for name, path in named if path is not None]
