"""The end-of-run report: its numbers, summary.json, and the table in 80 columns."""

import io
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from megatron_energy.observe.facts import PlanFacts
from megatron_energy.observe.interval import combine
from megatron_energy.observe.phases import Windows
from megatron_energy.observe.plan_text import PlannedGpus, plan_markdown
from megatron_energy.observe.report import build_report
from megatron_energy.observe.report_table import print_report
from megatron_energy.records.summary import GpuSummary, IterationSummary, Phase
from tests.observe.sample_records import run_summaries

FACTS = PlanFacts("segments", 20.0, 19.9, 1500.0, 4.5, 6, "/runs/a/plan.json", Path("/runs/a/timeline.png"), "/runs/a/tensorboard")


def iteration(phase: Phase, time_s: float, *energies_j: float, number: int = 1) -> IterationSummary:
    gpus = [GpuSummary(i, "n0", i, f"GPU-{i}", i, 0, 0, e, e / time_s, 1200.0, time_s / 10, requests=4) for i, e in enumerate(energies_j)]
    return IterationSummary(number, phase, time_s, gpus)


def windows(summaries: list[IterationSummary]) -> Windows:
    """All of the given iterations, by phase."""
    found = {phase: [s for s in summaries if s.phase == phase] for phase in ("baseline", "planned", "measure", "sweep")}
    return Windows(*(combine(found[phase]) if found[phase] else None for phase in found))


def text(summaries: list[IterationSummary], facts: PlanFacts = FACTS, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_report(build_report(windows(summaries), facts), console)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


RUN = [
    iteration("baseline", 20.0, 1000.0, 1000.0, number=1),
    iteration("baseline", 20.0, 1000.0, 1000.0, number=2),
    iteration("sweep", 30.0, 1100.0, 1100.0, number=3),
    iteration("planned", 20.2, 700.0, 950.0, number=4),
    iteration("planned", 20.2, 800.0, 950.0, number=5),
    iteration("evaluation", 1.0, 9.0, 9.0, number=5),
]


def test_the_numbers_are_means_of_their_phases() -> None:
    report = build_report(windows(RUN), FACTS)
    assert (report.baseline_iterations, report.planned_iterations) == (2, 2)
    assert (report.total.baseline_j, report.total.planned_j) == (2000.0, 1700.0)
    assert report.total.saved_percent == pytest.approx(15.0)
    assert report.slowdown_percent == pytest.approx(1.0)
    assert report.bound_share_percent == pytest.approx(75.0)
    assert [row.saved_percent for row in report.gpus] == pytest.approx([25.0, 5.0])
    assert report.gpus[0].planned_w == pytest.approx(1500.0 / 40.4)
    assert report.gpus[0].waiting_percent == pytest.approx(10.0)


def test_summary_json(tmp_path: Path) -> None:
    build_report(windows(RUN), FACTS).save(tmp_path / "summary.json")
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["schema"] == "megatron-energy/summary"
    assert summary["emulated"] is False
    assert (summary["baseline_energy_j"], summary["energy_j"]) == (2000.0, 1700.0)
    assert summary["saved_percent"] == pytest.approx(15.0)
    assert summary["files"] == {"plan": "/runs/a/plan.json", "timeline": "/runs/a/timeline.png", "tensorboard": "/runs/a/tensorboard"}
    assert [(g["node"], g["gpu"], g["energy_j"]) for g in summary["gpus"]] == [("n0", 0, 750.0), ("n0", 1, 950.0)]


def test_the_table_says_what_matters() -> None:
    shown = text(RUN)
    shown += " ".join(shown.split())  # sentences are broken into lines
    for expected in (
        "Energy of 2 GPUs, policy segments",
        "20.2000",
        "+1.00%",
        "1,700.0",
        "-15.00%",
        "Saved 15.00% (±0.5, by the counter's steps) at +1.00% time: 75% (±2) of the bound",
        "4.5 mean, 6 max",
        "Means of 2 baseline and 2 planned iterations.",
    ):
        assert expected in shown
    for path in ("/runs/a/tensorboard", "/runs/a/plan.json", "/runs/a/timeline.png"):
        assert path in shown
    assert "emulated" not in shown
    assert "emulated" in text(run_summaries())


def test_what_the_counters_steps_leave_open() -> None:
    """A step of 0.1 s in a window of 40 s is 0.25% of it, in one of 40.4 s 0.2475%."""
    report = build_report(windows(RUN), FACTS)
    assert report.saved_resolution_percent == pytest.approx(0.25 + 0.24752, abs=1e-5)
    assert report.to_dict()["saved_resolution_percent"] == report.saved_resolution_percent
    apart = [replace(s, iteration=2 * s.iteration) for s in RUN]  # two rows of iterations, two steps
    assert build_report(windows(apart), FACTS).saved_resolution_percent == pytest.approx(2 * 0.49752, abs=1e-5)
    fine = replace(FACTS, counter_step_s=0.02)
    assert build_report(windows(RUN), fine).saved_resolution_percent == pytest.approx(0.49752 / 5, abs=1e-5)


def planned(energy_j: float) -> list[IterationSummary]:
    """A baseline of 2000 J, and an iteration under the plan; the counter leaves 0.25% + 0.5% open."""
    return [*RUN[:2], iteration("planned", 20.0, energy_j / 2, energy_j / 2, number=9)]


@pytest.mark.parametrize("energy_j", [1990.0, 2010.0, 2000.0])
def test_noise_is_not_shown_as_a_saving(energy_j: float) -> None:
    facts = replace(FACTS, bound_saved_percent=1e-5)
    report, shown = build_report(windows(planned(energy_j)), facts), " ".join(text(planned(energy_j), facts).split())
    assert report.bound_share_percent is None and not report.saving_is_resolved
    assert "Energy changed by less than the counter's steps leave open (±0.75%)" in shown and "too few iterations" in shown
    assert "Saved" not in shown and "of the bound" not in shown and "-0.00" not in shown
    assert f"energy, J per iteration 2,000.0 {energy_j:,.1f} ~0 1,500.0" in shown


def test_a_share_of_the_bound_is_told_only_where_it_means_something() -> None:
    def shown(bound_percent: float) -> str:
        return " ".join(text(planned(1800.0), replace(FACTS, bound_saved_percent=bound_percent)).split())

    assert "at +0.00% time: 91% (±7) of the bound (11.00%)." in shown(11.0)
    assert "Too few iterations to tell what share of the bound (2.90%) that is." in shown(2.9)
    assert "The bound is 0.00%: no plan can save at this deadline." in shown(0.0)
    assert "101% (±8) of the bound (9.90%)." in shown(9.9) and "More than possible" not in shown(9.9)
    assert "125% (±9) of the bound (8.00%). More than possible: the profile" in shown(8.0)


def test_more_energy_is_not_called_a_saving() -> None:
    assert "Used 10.00% more (±0.75, by the counter's steps) at +0.00% time" in text(planned(2200.0))


def test_a_window_shorter_than_the_counters_steps_shows_no_energy() -> None:
    short = [replace(s, time_s=0.01) for s in RUN[:2] + RUN[3:5]]
    shown = " ".join(text(short, replace(FACTS, too_short="Name a larger model.")).split())
    assert "Too short for the energy counter, which steps every 100 ms: no energies are shown. Name a larger model." in shown
    assert "Saved" not in shown and "2,000.0" not in shown and "1,000" not in shown


def test_the_sweep_and_when_it_is_paid_back() -> None:
    """It used 2200 J where the baseline uses 2000, in 10 s more; 300 J are saved per iteration. 3 iterations cost 600 J: after 2."""
    sweep = build_report(windows(RUN), FACTS).sweep
    assert sweep is not None
    assert (sweep.iterations, sweep.energy_j, sweep.time_s, sweep.paid_back_after) == (1, 200.0, 10.0, 1)
    assert sweep.resolution_j == pytest.approx(2000 * (0.1 / 30 + 0.1 / 40))
    more = [*RUN[:3], *(replace(RUN[2], iteration=n) for n in (4, 5)), *RUN[3:]]
    assert build_report(windows(more), FACTS).sweep.paid_back_after == 2  # type: ignore[union-attr]
    shown = " ".join(text(more).split())
    assert "The sweep of 3 iterations cost +600 J and +30.0 s against the baseline, paid back after 2 planned iterations." in shown
    assert build_report(windows([*RUN[:2], *RUN[3:]]), FACTS).sweep is None


def test_a_sweep_that_saved_is_not_paid_back() -> None:
    cheap = [RUN[0], RUN[1], iteration("sweep", 30.0, 900.0, 900.0, number=3), *RUN[3:]]
    shown = " ".join(text(cheap).split())
    assert "The sweep of 1 iteration cost no energy (it used 200 J less) and +10.0 s against the baseline." in shown


DRY = [*RUN[:3], iteration("measure", 20.0, 1000.0, 1010.0, number=4)]


def test_a_dry_run_compares_the_plan_and_what_was_not_changed_with_the_baseline() -> None:
    facts = replace(FACTS, policy="dry-run", plan_policy="segments", expected_saved_percent=19.0, expected_slowdown_percent=-0.001)
    report, shown = build_report(windows(DRY), facts), " ".join(text(DRY, facts).split())
    assert (report.total.baseline_j, report.planned_iterations) == (2000.0, 0)
    assert report.to_dict()["untouched"] == {"iterations": 1, "iteration_s": 20.0, "energy_j": 2010.0}
    assert "Energy of 2 GPUs, policy dry-run" in shown and "baseline (2) dry run (1) plan expects" in shown
    assert "The plan (policy segments) expects to save 19.00% at +0.00% time; the bound is 20.00%." in shown
    assert "Saved" not in shown and "No iteration ran" not in shown


def test_a_plan_that_was_dropped_says_why() -> None:
    facts = replace(PlanFacts("segments"), off_reason="the profile does not explain the run")
    shown = text(RUN[:3], facts)
    assert "No iteration ran under a plan: the profile does not explain the run." in shown and "baseline (2)" in shown
    assert "Maximum clocks at the end: told so." in text(RUN, replace(FACTS, off_reason="told so"))


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
    assert "No iteration ran under a plan." in only_baseline and "measured (2)" in only_baseline
    assert "Saved" not in only_baseline
    only_plan = build_report(windows(RUN[3:]), FACTS)
    assert (only_plan.total.saved_percent, only_plan.slowdown_percent, only_plan.bound_share_percent) == (None, None, None)
    assert "No baseline window ran" in text(RUN[3:])
    assert "Nothing to report: no iteration was measured." in text([]) and "0 GPUs" not in text([])


def test_a_gpu_without_a_counter_leaves_the_total_unknown() -> None:
    report = build_report(windows([iteration("baseline", 2.0, 1000.0, math.nan), iteration("planned", 2.0, 900.0, 900.0)]), FACTS)
    assert (report.total.baseline_j, report.total.saved_percent) == (None, None)
    assert report.gpus[0].saved_percent == pytest.approx(10.0)
    assert report.to_dict()["baseline_energy_j"] is None


def test_the_plan_as_markdown() -> None:
    groups = [PlannedGpus("stage 0", 4, [("", 1110), ("forward 6", 1200), ("backward 2", 1110)]), PlannedGpus("stage 1", 4, [("", 1410)])]
    lines = plan_markdown(FACTS, groups, emulated=True).splitlines()
    assert lines[0] == "## Plan: segments (emulated GPUs)"
    assert "- no plan can save more than 20.00% at this deadline (emulated)" in lines
    assert "- expected energy: 1,500 J per iteration, all GPUs (emulated)" in lines
    assert "emulated" not in plan_markdown(FACTS, groups, emulated=False)
    dry = replace(FACTS, policy="dry-run", plan_policy="segments")
    assert plan_markdown(dry, groups, emulated=False).startswith("## Plan: segments, dry run: not in force\n")
    assert lines[-2] == "| stage 0 | 4 | 2 | **1110 MHz** → **1200 MHz** from forward 6 → **1110 MHz** from backward 2 |"
    assert lines[-1] == "| stage 1 | 4 | 0 | **1410 MHz** |"
