"""Checkpoints of Megatron's default format on a CPU, what goes on from them, and the helper processes that writing them takes.

The first of three runs also logs to a stand-in for Weights & Biases.
"""

import json
import re
from pathlib import Path

import pytest

from tests.conftest import is_installed
from tests.megatron.launching import launch, needs_megatron
from tests.megatron.pretraining import INTERLEAVED, MODEL, SCRIPT, write_text
from tests.megatron.test_cpu import run
from tests.session.launched import EMULATED, SHORT, UNTIL_PLAN, Done, launch_all

FIGURES = re.compile(r"iteration +(\d+)/.*lm loss: (\S+) .*grad norm: (\S+)")


WANDB = """
import json
def init(**settings):
    global history
    history = open(f"{settings['dir']}/history.jsonl", "a")
    print(json.dumps({name: str(value) for name, value in settings["config"].items()}), file=history, flush=True)
def log(data, step):
    print(json.dumps({"step": step, **{tag: float(value) for tag, value in data.items()}}), file=history, flush=True)
def finish():
    history.close()
from unittest.mock import MagicMock
run = config = Artifact = MagicMock()
"""
SAVED, LAST = UNTIL_PLAN + 1, UNTIL_PLAN + 4


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, megatron_training: None) -> dict[str, Done]:
    """A run under a plan; from its checkpoint, one without our flags and one with its plan."""
    if not (is_installed("psutil") and is_installed("tensorboard")):
        pytest.skip("Megatron needs psutil to write checkpoints, and TensorBoard to log to W&B")
    folder = tmp_path_factory.mktemp("checkpoints")
    (folder / "modules").mkdir()
    (folder / "modules" / "wandb.py").write_text(WANDB)
    words = ["--nproc", "2", SCRIPT, *MODEL, *INTERLEAVED, "--train-iters", str(LAST), "--eval-iters", "0"]
    words += ["--train-text", str(write_text(folder)), "--save", folder / "saved", "--save-interval", str(SAVED)]
    words += ["--tensorboard-dir", folder / "tensorboard"]
    on = ["--energy-policy", "segments", *EMULATED, *SHORT]
    logged = ["--wandb-project", "project", "--wandb-exp-name", "experiment", "--wandb-save-dir", folder / "wandb"]
    again = [*words, "--load", folder / "saved", "--ckpt-step", str(SAVED)]
    launches = {
        "whole": [*words, *logged, *on],
        "bare": again,
        "planned": [*again, *on, "--energy-plan", folder / "whole-energy" / "plan.json"],
    }
    done = launch_all(folder, launches, folder / "modules")
    assert [run.status for run in done.values()] == [0, 0, 0], [run.err[-2000:] for run in done.values()]
    return done


@pytest.mark.parametrize("name", ["bare", "planned"])
def test_a_resumed_run_goes_on_as_if_it_had_not_ended(runs: dict[str, Done], name: str) -> None:
    before, after = (FIGURES.findall(runs[run].out) for run in ("whole", name))
    assert [int(iteration) for iteration, _, _ in before] == list(range(1, LAST + 1))
    assert [(iteration, norm) for iteration, _, norm in after] == [(iteration, norm) for iteration, _, norm in before[SAVED:]]
    # The loss that Megatron prints for the second iteration of a process is the mean of its first two.
    assert [after[0][1], after[2][1]] == [before[SAVED][1], before[SAVED + 2][1]]


def test_a_checkpoint_needs_nothing_of_ours_to_be_loaded(runs: dict[str, Done]) -> None:
    files = [path for path in (runs["bare"].directory / "saved").rglob("*") if path.is_file()]
    assert any(b"energy_policy" in path.read_bytes() for path in files), "the flags' values are in its arguments"
    assert [path for path in files if b"megatron_energy" in path.read_bytes()] == []
    assert runs["bare"].said == []


def test_a_resumed_run_goes_on_with_its_plan(runs: dict[str, Done]) -> None:
    assert runs["planned"].phases == ["baseline", "baseline", "planned"]
    assert [i.iteration for i in runs["planned"].iterations] == list(range(SAVED + 1, LAST + 1))


def test_weights_and_biases_has_the_scalars_beside_megatrons(runs: dict[str, Done]) -> None:
    text = (runs["bare"].directory / "wandb" / "history.jsonl").read_text()
    settings, *history = (json.loads(line) for line in text.splitlines())
    assert settings["energy_policy"] == "segments"
    losses = {line["step"] for line in history if "lm loss" in line}
    energies = {line["step"]: line for line in history if "iter-energy/gpu" in line}
    assert losses == set(energies) == set(range(1, LAST + 1))
    for iteration in runs["whole"].iterations:
        line = energies[iteration.iteration]
        assert line["energy/all/interval-energy-j emulated"] == iteration.energy_j
        assert sum(tag.startswith("energy/gpu/") and tag.endswith("/power-w emulated") for tag in line) == 2


@needs_megatron
def test_the_queue_of_results_is_one_small_process_without_the_ranks_connections() -> None:
    out = run("""
        import os, socket, sys
        from pathlib import Path
        from megatron_energy.megatron.cpu import helpers
        ours, theirs = socket.socketpair()
        ours.settimeout(10)
        queue = helpers.results_queue("spawn")
        assert helpers.results_queue() is queue
        queue.put({"rank": 3})
        assert queue.get_nowait() == {"rank": 3} and queue.empty()
        theirs.close()
        assert ours.recv(1) == b"", "the helper still holds the connection"
        print(helpers._kept["manager"]._process.pid)
    """)
    assert not Path(f"/proc/{int(out)}").exists(), "it ends with the rank"


@needs_megatron
def test_spawned_processes_have_the_shims(tmp_path: Path) -> None:
    script = tmp_path / "s.py"
    script.write_text(
        "import multiprocessing, torch\n"
        "def work(queue):\n"
        "    import triton\n"
        "    queue.put(torch.cuda.is_available())\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    queue = context.SimpleQueue()\n"
        "    worker = context.Process(target=work, args=(queue,))\n"
        "    worker.start()\n"
        "    worker.join()\n"
        "    print(worker.exitcode, queue.get() if worker.exitcode == 0 else None)\n"
    )
    done = launch("--cpu", script)
    assert done.stdout == "0 True\n", done.stderr
