"""Hooks in megatron.training's own loop: same losses, the modelled programs, log calls with the writer on the last rank."""

import json
import re
from pathlib import Path

import pytest

from megatron_energy.pipeline.programs import program
from tests.megatron.launching import launch
from tests.megatron.pretraining import INTERLEAVED, MODEL, SCRIPT, write_text
from tests.megatron.test_recorded_runs import schedule_of, steps

pytestmark = pytest.mark.usefixtures("megatron_training")
SHORT = ["--train-iters", "4", "--log-interval", "2", "--eval-interval", "2", "--overlap-grad-reduce", "--use-distributed-optimizer"]


def test_a_pretraining_is_recorded_and_not_changed(tmp_path: Path) -> None:
    arguments = [*MODEL, *INTERLEAVED, *SHORT, "--train-text", write_text(tmp_path)]
    plain = launch("--nproc", "4", SCRIPT, *arguments)
    script = Path(__file__).with_name("collected_pretraining.py")
    hooked = launch("--nproc", "4", script, *arguments, "--tensorboard-dir", tmp_path / "tb", COLLECT_DIR=str(tmp_path))
    for done in (plain, hooked):
        assert done.returncode == 0, done.stderr[-4000:]
    figures = [re.findall(r"(?:lm loss(?: value)?|grad norm): \S+", done.stdout) for done in (plain, hooked)]
    assert figures[0] == figures[1] and len(figures[0]) >= 4
    reports = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(4)]
    for rank, report in enumerate(reports):
        assert report["broken"] == []
        assert report["logged"] == [[2, rank == 3], [4, rank == 3]]
        evaluations = [one["evaluation"] for one in report["programs"]]
        assert evaluations[:6] == [False, False, True, False, False, True]
        for iteration, evaluation in enumerate(evaluations):
            expected = program(
                schedule_of(report, forward_only=evaluation),
                report["facts"][0]["stage"],
                grad_sync=not evaluation,
                optimizer=not evaluation,
            )
            assert steps(report, iteration) == expected, f"rank {rank}, iteration {iteration}"
