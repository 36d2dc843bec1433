"""A whole pretraining on 16 ranks (TP2 x PP4 x 2 chunks x DP2, 8 microbatches) as the quick start runs it: what it leaves behind agrees."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from megatron_energy.cli.main import main
from megatron_energy.emulation.state import NodeState
from megatron_energy.planning.plan_file import load_plan
from megatron_energy.profiles.files import load_profile
from tests.conftest import is_installed
from tests.megatron.launching import launch
from tests.megatron.pretraining import MODEL, SCRIPT, write_text
from tests.session.launched import EMULATED, SHORT, UNTIL_PLAN, Done

pytestmark = [
    pytest.mark.usefixtures("megatron_training"),
    pytest.mark.skipif(not is_installed("tensorboard"), reason="needs tensorboard"),
]
RANKS, NODES, GPUS_PER_NODE = 16, 2, 8
ITERATIONS = UNTIL_PLAN + 3
LAYOUT = ["--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "4", "--num-layers-per-virtual-pipeline-stage", "1"]
SIZES = ["--num-layers", "8", "--micro-batch-size", "1", "--train-iters", str(ITERATIONS), "--eval-iters", "0"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("sixteen")
    words = [*MODEL, *SIZES, *LAYOUT, "--train-text", write_text(folder), "--tensorboard-dir", folder / "tensorboard"]
    done = launch("--nproc", str(RANKS), SCRIPT, *words, "--energy-policy", "segments", *EMULATED, *SHORT)
    assert done.returncode == 0, done.stderr[-4000:]
    return Done(done.returncode, done.stdout, done.stderr, folder / "tensorboard" / "energy")


@pytest.fixture(scope="module")
def scalars(run: Done) -> dict[str, dict[int, float]]:
    """Tag -> step -> value, of everything that TensorBoard would show."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.directory.parent), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: {e.step: e.value for e in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


GPU_TAGS = [f"energy/gpu/node{node}/{index}/interval-energy-j emulated" for node in range(NODES) for index in range(GPUS_PER_NODE)]


def test_phases(run: Done) -> None:
    assert run.phases == ["baseline"] * 2 + ["sweep"] * (UNTIL_PLAN - 2) + ["planned"] * 3
    assert [i.iteration for i in run.iterations] == list(range(1, ITERATIONS + 1))
    for iteration in run.iterations:
        places = [(g.rank, g.node, g.gpu, g.stage, g.tensor, g.data) for g in iteration.gpus]
        # Megatron's order: tensor first, then data, then pipeline
        assert places == [(r, f"node{r // 8}", r % 8, r // 4, r % 2, r // 2 % 2) for r in range(RANKS)]


def test_tensorboard_has_the_energy_of_every_gpu_at_every_step(run: Done, scalars: dict[str, dict[int, float]]) -> None:
    counters = [NodeState(run.directory / "emulated-nodes" / f"node-node{node}.state") for node in range(NODES)]
    for position, tag in enumerate(GPU_TAGS):
        assert sorted(scalars[tag]) == list(range(1, ITERATIONS + 1))
        counter_j = counters[position // GPUS_PER_NODE].gpu(position % GPUS_PER_NODE).counter_mj / 1000
        assert sum(scalars[tag].values()) == pytest.approx(counter_j, rel=1e-6)  # TensorBoard keeps 32-bit floats
    for iteration in run.iterations:
        all_gpus_j = sum(scalars[tag][iteration.iteration] for tag in GPU_TAGS)
        assert all_gpus_j == pytest.approx(iteration.energy_j, rel=1e-6)
        assert scalars["energy/all/interval-energy-j emulated"][iteration.iteration] == pytest.approx(iteration.energy_j, rel=1e-6)
        assert scalars["iter-energy/gpu"][iteration.iteration] == pytest.approx(iteration.energy_j / RANKS, rel=1e-6)
    for node in counters:
        node.close()


def test_tensorboard_says_what_the_journal_says(run: Done, scalars: dict[str, dict[int, float]]) -> None:
    for iteration in run.iterations:
        step = iteration.iteration
        assert scalars["energy/all/iteration-time-s emulated"][step] == pytest.approx(iteration.time_s, rel=1e-6)
        assert scalars["energy/all/plan-version emulated"][step] == (iteration.phase == "planned")
        for tag, value in (("saved-percent", iteration.saved_percent), ("slowdown-percent", iteration.slowdown_percent)):
            logged = scalars[f"energy/all/{tag} emulated"].get(step)
            assert logged == (None if value is None else pytest.approx(value, rel=1e-6, abs=1e-9))
    losses = scalars["lm loss"]
    assert len(losses) == ITERATIONS and losses[ITERATIONS] < losses[1]


def test_the_summary_is_the_mean_of_the_iterations(run: Done) -> None:
    summary, plan = run.json("summary.json"), load_plan(run.directory / "plan.json")
    baseline, planned = run.iterations[1], run.iterations[UNTIL_PLAN + 1 :]  # the first of each contains what came before it
    energy_j, time_s = (sum(values) / len(planned) for values in ([i.energy_j for i in planned], [i.time_s for i in planned]))
    assert (summary["baseline_iterations"], summary["planned_iterations"], summary["emulated"]) == (1, 2, True)
    assert summary["baseline_energy_j"] == pytest.approx(baseline.energy_j, rel=1e-9)
    assert summary["energy_j"] == pytest.approx(energy_j, rel=1e-9)
    assert summary["saved_percent"] == pytest.approx(100 * (1 - energy_j / baseline.energy_j), rel=1e-6)
    assert summary["slowdown_percent"] == pytest.approx(100 * (time_s / baseline.time_s - 1), abs=1e-6)
    assert summary["bound_saved_percent"] == plan.expected.bound_saved_percent
    assert summary["expected_energy_j"] == plan.expected.energy_j
    assert (summary["switches_per_gpu_mean"], summary["switches_per_gpu_max"]) == (plan.switches_mean, plan.switches_max)
    assert [g["rank"] for g in summary["gpus"]] == list(range(RANKS))
    assert f"Saved {summary['saved_percent']:.2f}%" in run.out and "16 emulated GPUs" in run.out


NEAR_BOUND = 0.85
"""Of the bound, which knows no switching: here a raise is requested 65 ms early on a node of 8, in iterations of 5 s. What a plan
reaches without a counter's steps and with more clocks is in test_plan_against_settled.py."""


def test_planned_iterations_keep_time_and_come_near_the_bound(run: Done) -> None:
    plan, planned = load_plan(run.directory / "plan.json"), run.iterations[UNTIL_PLAN + 1 :]
    assert plan.switches_max <= 8
    assert all(i.slowdown_percent <= 0.1 for i in planned)
    assert sum(i.saved_percent for i in planned) / len(planned) >= NEAR_BOUND * plan.expected.bound_saved_percent
    assert sum(g.late_raises for i in planned for g in i.gpus) == 0


def test_the_plan_is_for_this_job(run: Done) -> None:
    plan = load_plan(run.directory / "plan.json")
    assert plan.layout == {"tensor": 2, "context": 1, "expert": 1, "data": 2, "pipeline": 4}
    assert (plan.gpus, plan.schedule.stages, plan.schedule.chunks, plan.schedule.microbatches) == (RANKS, 4, 2, 8)
    assert plan.provenance["emulated"] is True


def replayed(capsys: pytest.CaptureFixture[str], *words: str | Path) -> Any:
    assert main(["replay", "--json", *map(str, words)]) == 0
    return json.loads(capsys.readouterr().out)


def test_replay_gives_what_the_plan_expects(run: Done, capsys: pytest.CaptureFixture[str]) -> None:
    plan, profile = load_plan(run.directory / "plan.json"), load_profile(run.directory / "profile.csv")
    found = replayed(capsys, "--profile", run.directory / "profile.csv", "--plan", run.directory / "plan.json")
    for name in ("iteration_s", "energy_j", "baseline_iteration_s", "baseline_energy_j", "deadline_s"):
        assert found[name] == pytest.approx(getattr(plan.expected, name), rel=1e-9), name
    assert found["saved_percent"] == pytest.approx(plan.expected.saved_percent, abs=1e-6)
    measured = set(profile.curves[0, 0, "forward"].clock_mhz.tolist())
    assert set(found["interpolated_clocks_mhz"]) == plan.clocks_mhz - measured != set()
    assert found["emulated"] is True
    baseline, planned = run.iterations[1], run.iterations[-1]
    assert found["baseline_iteration_s"] == pytest.approx(baseline.time_s, rel=1e-3)
    assert found["iteration_s"] == pytest.approx(planned.time_s, rel=1e-3)
    assert found["energy_j"] == pytest.approx(planned.energy_j, rel=0.02)  # early raises, and the counters' steps


def test_replay_in_another_communication_mode_is_another_time(run: Done, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--profile", run.directory / "profile.csv", "--plan", run.directory / "plan.json"]
    assert replayed(capsys, *files, "--p2p", "ideal")["iteration_s"] < replayed(capsys, *files)["iteration_s"]


def test_the_picture_is_there(run: Done) -> None:
    png = (run.directory / "timeline.png").read_bytes()
    width, height = (int.from_bytes(png[at : at + 4], "big") for at in (16, 20))
    assert png.startswith(b"\x89PNG") and width > 1000 and height > 300
    spans = run.json("trace.json")
    assert spans and math.isfinite(len(json.dumps(spans)))
