"""Checkpoints of Megatron's default format on a CPU, and the helper processes that writing them takes."""

import re
from pathlib import Path

import pytest

from tests.conftest import is_installed
from tests.megatron.launching import launch, needs_megatron
from tests.megatron.pretraining import INTERLEAVED, MODEL, SCRIPT, write_text
from tests.megatron.test_cpu import run

FIGURES = re.compile(r"iteration +(\d+)/.*lm loss: (\S+) .*grad norm: (\S+)")


@pytest.mark.usefixtures("megatron_training")
@pytest.mark.skipif(not is_installed("psutil"), reason="Megatron needs psutil to write checkpoints")
def test_a_resumed_run_goes_on_as_if_it_had_not_ended(tmp_path: Path) -> None:
    words = [*MODEL, *INTERLEAVED, "--train-iters", "7", "--eval-iters", "0", "--train-text", str(write_text(tmp_path))]
    words += ["--save", str(tmp_path / "saved"), "--save-interval", "4"]
    whole = launch("--nproc", "2", SCRIPT, *words)
    resumed = launch("--nproc", "2", SCRIPT, *words, "--load", tmp_path / "saved", "--ckpt-step", "4")
    for done in (whole, resumed):
        assert done.returncode == 0, done.stderr[-4000:]
    before, after = (FIGURES.findall(done.stdout) for done in (whole, resumed))
    assert [iteration for iteration, _, _ in before] == list("1234567")
    assert [(iteration, norm) for iteration, _, norm in after] == [(iteration, norm) for iteration, _, norm in before[4:]]
    # The loss that Megatron prints for the second iteration of a process is the mean of its first two.
    assert [after[0][1], after[2][1]] == [before[4][1], before[6][1]]


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
