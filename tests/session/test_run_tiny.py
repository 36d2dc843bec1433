"""Whole runs of real Megatron on 4 ranks: from the first step to steps under a plan, and starts that reuse what a run left."""

import itertools
import json
from pathlib import Path

import pytest

from megatron_energy.emulation.install import DEFAULT_COUNT
from megatron_energy.emulation.state import NodeState
from megatron_energy.planning.plan_file import load_plan
from tests.megatron.launching import needs_megatron
from tests.session.launched import EMULATED, SHORT, UNTIL_PLAN, Done, Training, launch_all, results, training

pytestmark = needs_megatron
RANKS = 4
STEPS = UNTIL_PLAN + 6
MIDDLE_MHZ = 1270
"""Forwards run at about 1286 MHz where nothing is requested: the power cap holds them there. Plans use clocks below this one."""
EVALUATED_BEFORE = (UNTIL_PLAN + 2, UNTIL_PLAN + 4)
LAYOUT = ["--pipeline", "4", "--virtual", "2", "--microbatches", "8", "--overlap"]
WHOLE = Training([*LAYOUT, "--steps", str(STEPS)], {str(step): "evaluate" for step in EVALUATED_BEFORE})
FEW = Training([*LAYOUT, "--steps", "4"], {})
ENERGY = ["--energy-policy", "segments", *EMULATED, *SHORT]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, Done]:
    plan, profile = folder / "segments-energy" / "plan.json", folder / "segments-energy" / "profile.csv"
    return launch_all(
        folder,
        {
            "off": training(folder / "off", RANKS, {"whole": WHOLE}, "--energy-policy", "off"),
            "segments": training(folder / "segments", RANKS, {"whole": WHOLE}, *ENERGY),
            "planned": training(folder / "planned", RANKS, {"few": FEW}, *ENERGY, "--energy-plan", plan),
            "profiled": training(folder / "profiled", RANKS, {"few": FEW}, *ENERGY, "--energy-profile", profile),
        },
    )


def test_training_is_the_same_to_the_last_bit(runs: dict[str, Done], folder: Path) -> None:
    assert [runs[name].status for name in ("off", "segments")] == [0, 0], runs["segments"].err
    off, segments = (results(folder / name, "whole", RANKS) for name in ("off", "segments"))
    assert off == segments
    assert [len(rank["grad_norms"]) for rank in off] == [STEPS] * RANKS
    assert len(off[-1]["losses"]) == STEPS and len({rank["parameters"] for rank in off}) == RANKS


def test_phases(runs: dict[str, Done]) -> None:
    expected = ["baseline"] * 2 + ["sweep"] * (UNTIL_PLAN - 2)
    for step in range(UNTIL_PLAN, STEPS):
        expected += ["evaluation"] * (2 if step in EVALUATED_BEFORE else 0) + ["planned"]
    assert runs["segments"].phases == expected
    assert [i.iteration for i in runs["segments"].iterations if i.phase != "evaluation"] == list(range(1, STEPS + 1))


def test_planned_iterations_keep_time_and_reach_the_bound(runs: dict[str, Done]) -> None:
    run, plan = runs["segments"], load_plan(runs["segments"].directory / "plan.json")
    planned = [i for i in run.iterations if i.phase == "planned"]
    assert plan.switches_max <= 8
    after_evaluations = [b for a, b in itertools.pairwise(run.iterations) if a.phase == "evaluation" != b.phase]
    assert [(i.slowdown_percent, i.saved_percent) for i in after_evaluations] == [(None, None)] * 2
    for iteration in planned[1:]:  # the first still begins at the sweep's last clock
        if iteration in after_evaluations:
            continue
        assert iteration.slowdown_percent <= 0.1
        assert iteration.saved_percent >= 0.9 * plan.expected.bound_saved_percent
        assert sum(gpu.late_raises for gpu in iteration.gpus) == 0
    baseline = run.iterations[1]
    assert planned[1].saved_percent == pytest.approx(100 * (1 - planned[1].energy_j / baseline.energy_j), abs=1e-9)
    assert planned[1].slowdown_percent == pytest.approx(100 * (planned[1].time_s / baseline.time_s - 1), abs=1e-9)


def test_evaluations_run_at_the_gpus_own_clock_and_leave_the_plan_as_it_was(runs: dict[str, Done]) -> None:
    iterations = runs["segments"].iterations
    planned = [i for i in iterations if i.phase == "planned"]
    undisturbed = planned[1]
    after = [b for a, b in itertools.pairwise(iterations) if (a.phase, b.phase) == ("evaluation", "planned")]
    assert len(after) == 2
    for iteration in after:
        assert undisturbed.time_s < iteration.time_s <= undisturbed.time_s * 1.02  # a slower last stage ends the evaluation first
        assert iteration.energy_j == pytest.approx(undisturbed.energy_j, rel=0.01)
        # the clock that the plan begins with is requested once more
        assert [g.requests for g in iteration.gpus] == [g.requests + 1 for g in undisturbed.gpus]
    for number, iteration in enumerate(iterations):
        if iteration.phase == "evaluation" and iterations[number - 1].phase == "evaluation":
            assert all(gpu.clock_mhz > MIDDLE_MHZ for gpu in iteration.gpus), "no switch is left in the second of two"


def test_the_journal_adds_up_to_the_counters(runs: dict[str, Done]) -> None:
    run = runs["segments"]
    with_nodes = list((run.directory / "emulated-nodes").glob("*.state"))
    assert len(with_nodes) == 1 and RANKS <= DEFAULT_COUNT
    node = NodeState(with_nodes[0])
    for index in range(RANKS):
        counted_j = sum(i.gpus[index].energy_j for i in run.iterations)
        assert node.gpu(index).counter_mj / 1000 == pytest.approx(counted_j, abs=1e-6)
        assert counted_j > 1000
    node.close()


def test_the_gpus_are_given_back(runs: dict[str, Done]) -> None:
    node = NodeState(next((runs["segments"].directory / "emulated-nodes").glob("*.state")))
    assert all((node.gpu(i).locked_min_mhz, node.gpu(i).locked_max_mhz) == (0, 0) for i in range(RANKS))
    node.close()


def test_the_plan_of_a_run_can_be_run_at_once(runs: dict[str, Done]) -> None:
    first, again = runs["segments"], runs["planned"]
    assert (again.status, again.phases) == (0, ["baseline", "baseline", "planned", "planned"]), again.err
    assert again.json("plan.json") == first.json("plan.json")
    assert len(again.said) == 1 and again.said[0].startswith(f"megatron-energy: plan {first.directory / 'plan.json'}: expects ")
    assert again.iterations[-1].energy_j == pytest.approx(first.iterations[-1].energy_j, rel=0.01)
    assert again.iterations[-1].slowdown_percent <= 0.1


def test_the_profile_of_a_run_can_be_planned_from_at_once(runs: dict[str, Done]) -> None:
    first, again = runs["segments"], runs["profiled"]
    assert (again.status, again.phases) == (0, ["baseline", "baseline", "planned", "planned"]), again.err
    ours, theirs = again.json("plan.json")["expected"], first.json("plan.json")["expected"]
    assert ours["bound_saved_percent"] == pytest.approx(theirs["bound_saved_percent"], abs=1e-6)
    assert ours["baseline_energy_j"] == pytest.approx(theirs["baseline_energy_j"], rel=1e-9)
    assert ours["saved_percent"] >= 0.9 * ours["bound_saved_percent"]
    assert again.iterations[-1].slowdown_percent <= 0.1


def test_one_line_per_event_and_every_figure_says_that_it_is_emulated(runs: dict[str, Done]) -> None:
    run = runs["segments"]
    assert len(run.said) == 1 and run.said[0].startswith("megatron-energy: plan made in ")
    assert "emulated GPUs" in run.out
    assert run.json("summary.json")["emulated"] is True
    assert all(i.emulated for i in run.iterations)
    assert json.loads((run.directory / "plan.json").read_text())["provenance"]["emulated"] is True
