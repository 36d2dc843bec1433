"""The end-of-run report: its numbers, summary.json, and the table in 80 columns."""

import io
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from megatron_energy.observe.facts import PlanFacts
from megatron_energy.observe.plan_text import PlannedGpus, plan_markdown
from megatron_energy.observe.report import build_report
from megatron_energy.observe.report_table import print_report
from megatron_energy.records.summary import GpuSummary, IterationSummary, Phase
from tests.observe.sample_records import run_summaries

FACTS = PlanFacts("segments", 20.0, 1.99, 1500.0, 4.5, 6, "/runs/a/plan.json", Path("/runs/a/timeline.png"), "/runs/a/tensorboard")


def iteration(phase: Phase, time_s: float, *energies_j: float) -> IterationSummary:
    gpus = [GpuSummary(i, "n0", i, f"GPU-{i}", i, 0, 0, e, e / time_s, 1200.0, time_s / 10, requests=4) for i, e in enumerate(energies_j)]
    return IterationSummary(1, phase, time_s, gpus)


def text(summaries: list[IterationSummary], facts: PlanFacts = FACTS, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_report(build_report(summaries, facts), console)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


RUN = [
    iteration("baseline", 2.0, 1000.0, 1000.0),
    iteration("baseline", 2.0, 1000.0, 1000.0),
    iteration("sweep", 3.0, 1.0, 1.0),
    iteration("planned", 2.02, 700.0, 950.0),
    iteration("planned", 2.02, 800.0, 950.0),
    iteration("evaluation", 1.0, 9.0, 9.0),
]


def test_the_numbers_are_means_of_their_phases() -> None:
    report = build_report(RUN, FACTS)
    assert (report.baseline_iterations, report.planned_iterations) == (2, 2)
    assert (report.total.baseline_j, report.total.planned_j) == (2000.0, 1700.0)
    assert report.total.saved_percent == pytest.approx(15.0)
    assert report.slowdown_percent == pytest.approx(1.0)
    assert report.bound_share_percent == pytest.approx(75.0)
    assert [row.saved_percent for row in report.gpus] == pytest.approx([25.0, 5.0])
    assert report.gpus[0].planned_w == pytest.approx(1500.0 / 4.04)
    assert report.gpus[0].waiting_percent == pytest.approx(10.0)


def test_summary_json(tmp_path: Path) -> None:
    build_report(RUN, FACTS).save(tmp_path / "summary.json")
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["schema"] == "megatron-energy/summary"
    assert summary["emulated"] is False
    assert (summary["baseline_energy_j"], summary["energy_j"]) == (2000.0, 1700.0)
    assert summary["saved_percent"] == pytest.approx(15.0)
    assert summary["files"] == {"plan": "/runs/a/plan.json", "timeline": "/runs/a/timeline.png", "tensorboard": "/runs/a/tensorboard"}
    assert [(g["node"], g["gpu"], g["energy_j"]) for g in summary["gpus"]] == [("n0", 0, 750.0), ("n0", 1, 950.0)]


def test_the_table_says_what_matters() -> None:
    shown = text(RUN)
    for expected in (
        "Energy of 2 GPUs, policy segments",
        "2.0200",
        "+1.00%",
        "1,700.0",
        "-15.00%",
        "75% of the bound (20.00%)",
        "4.5 mean, 6 max",
    ):
        assert expected in shown
    for path in ("/runs/a/tensorboard", "/runs/a/plan.json", "/runs/a/timeline.png"):
        assert path in shown
    assert "emulated" not in shown
    assert "emulated" in text(run_summaries())


@pytest.mark.parametrize("copies", [1, 4])
def test_the_table_fits_80_columns_and_cuts_no_number(copies: int) -> None:
    """16 GPUs one by one, 64 by stage; also with energies of a long iteration."""
    summaries = [
        replace(
            s,
            gpus=[replace(g, node=f"{g.node}-{k}", uuid=f"{g.uuid}-{k}", energy_j=g.energy_j * 50) for k in range(copies) for g in s.gpus],
        )
        for s in run_summaries()
    ]
    shown = text(summaries)
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert "…" not in shown
    if copies == 1:
        assert shown.count("node1-0") == 1
    else:
        assert [line.split()[:3] for line in shown.splitlines() if line.strip().startswith("stage")] == [
            ["stage", str(s), "16"] for s in range(4)
        ]


def test_many_gpus_of_one_stage_are_grouped_by_node() -> None:
    summaries = [
        replace(s, gpus=[replace(g, node=f"{g.node}{k}", uuid=f"{g.uuid}-{k}", stage=0) for k in range(2) for g in s.gpus])
        for s in run_summaries()
    ]
    shown = text(summaries)
    assert [line.split()[:2] for line in shown.splitlines() if line.strip().startswith("node")] == [
        [f"node{n}", "8"] for n in ("00", "01", "10", "11")
    ]


def test_long_node_names_give_way_to_numbers() -> None:
    summaries = [
        replace(s, gpus=[replace(g, node=f"cluster-compute-rack17-{g.node}.example.org") for g in s.gpus]) for s in run_summaries()
    ]
    shown = text(summaries)
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert "22.24" in shown


def test_phases_that_did_not_run_are_named_and_nothing_is_claimed() -> None:
    only_baseline = text(RUN[:2], PlanFacts("measure"))
    assert "No iteration ran under a plan." in only_baseline
    assert "Saved" not in only_baseline
    only_plan = build_report(RUN[3:], FACTS)
    assert (only_plan.total.saved_percent, only_plan.slowdown_percent, only_plan.bound_share_percent) == (None, None, None)
    assert "No baseline window ran" in text(RUN[3:])
    assert "Energy of 0 GPUs" in text([])


def test_a_gpu_without_a_counter_leaves_the_total_unknown() -> None:
    report = build_report([iteration("baseline", 2.0, 1000.0, math.nan), iteration("planned", 2.0, 900.0, 900.0)], FACTS)
    assert (report.total.baseline_j, report.total.saved_percent) == (None, None)
    assert report.gpus[0].saved_percent == pytest.approx(10.0)
    assert report.to_dict()["baseline_energy_j"] is None


def test_the_plan_as_markdown() -> None:
    groups = [PlannedGpus("stage 0", 4, [("", 1110), ("forward 6", 1200), ("backward 2", 1110)]), PlannedGpus("stage 1", 4, [("", 1410)])]
    lines = plan_markdown(FACTS, groups, emulated=True).splitlines()
    assert lines[0] == "## Plan: segments (emulated GPUs)"
    assert "- no plan can save more than 20.00% at this deadline" in lines
    assert lines[-2] == "| stage 0 | 4 | 2 | **1110 MHz** → **1200 MHz** from forward 6 → **1110 MHz** from backward 2 |"
    assert lines[-1] == "| stage 1 | 4 | 0 | **1410 MHz** |"
