"""Measuring without planning: NVML in wall time, on emulated GPUs under a known load."""

import os
import subprocess
import sys

import pytest

from megatron_energy.emulation.catalog import load
from megatron_energy.emulation.physics import power_w
from tests.conftest import is_installed
from tests.megatron.launching import REPOSITORY
from tests.megatron.pretraining import INTERLEAVED, MODEL, SCRIPT, write_text
from tests.session.launched import Done

pytestmark = [
    pytest.mark.usefixtures("megatron_training"),
    pytest.mark.skipif(not is_installed("tensorboard"), reason="needs tensorboard"),
]
RANKS, ITERATIONS, LOGGED_EVERY = 4, 7, 2
LOAD = 0.5
GPU = load("a100-sxm4-80gb")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("measured")
    emulation = ["--gpu", GPU.key, "--count", str(RANKS), "--load", str(LOAD), "-m", "megatron_energy.run"]
    sizes = ["--train-iters", str(ITERATIONS), "--log-interval", str(LOGGED_EVERY), "--eval-interval", "3", "--eval-iters", "1"]
    training = [*MODEL, *INTERLEAVED, *sizes, "--train-text", write_text(folder), "--tensorboard-dir", folder / "tensorboard"]
    energy = ["--energy-policy", "measure", "--energy-device", "nvml"]
    done = subprocess.run(
        [sys.executable, "-m", "megatron_energy.emulation", *emulation, "--nproc", str(RANKS), SCRIPT, *training, *energy],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "MEGATRON_ENERGY_EMULATED_DIR": str(folder / "node")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return Done(done.returncode, done.stdout, done.stderr, folder / "tensorboard" / "energy")


def test_every_iteration_is_in_the_journal_and_so_are_evaluations_in_the_loop(run: Done) -> None:
    """The last iteration too, though Megatron does not log it."""
    of_iteration = {i: ["measure"] + ["evaluation"] * (i % 3 == 0) for i in range(1, ITERATIONS + 1)}
    assert [(i.iteration, i.phase) for i in run.iterations] == [(i, phase) for i, phases in of_iteration.items() for phase in phases]


def test_energies_are_those_of_the_load(run: Done) -> None:
    watts = power_w(GPU, GPU.sm_clock_max_mhz, LOAD)
    for index in range(RANKS):
        laps = [i.gpus[index] for i in run.iterations]
        assert all(lap.clock_mhz == GPU.sm_clock_max_mhz for lap in laps)
        seen = [lap for lap in laps if lap.energy_j > 0]  # the counter stands still in a lap that is shorter than its step
        total_j, total_s = sum(lap.energy_j for lap in seen), sum(lap.energy_j / lap.power_w for lap in seen)
        steps = 2 + len(laps) - len(seen)  # of the counter: at both ends, and in each lap that was left out
        assert total_j == pytest.approx(watts * total_s, abs=steps * watts * GPU.counter_update_s)
    assert len({gpu.uuid for gpu in run.iterations[0].gpus}) == RANKS


def test_nothing_is_planned_and_the_gpus_are_called_emulated(run: Done) -> None:
    assert run.said == ["megatron-energy: measuring 4 emulated GPUs (energy counter); clocks are left as they are"]
    assert "Energy of 4 emulated GPUs, policy measure" in run.out and "No iteration ran under a plan." in run.out
    assert not (run.directory / "plan.json").exists()
    assert run.json("summary.json")["emulated"] is True and all(i.emulated for i in run.iterations)
    assert {(i.saved_percent, i.plan_version) for i in run.iterations} == {(None, 0)}


def test_tensorboard_has_it_as_well(run: Done) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.directory.parent), size_guidance={"scalars": 0})
    events.Reload()
    found = {e.step: e.value for e in events.Scalars("energy/all/interval-energy-j emulated")}
    assert sorted(found) == [2, 4, 6, 7]
    assert sum(found.values()) == pytest.approx(sum(i.energy_j for i in run.iterations), rel=1e-6)
