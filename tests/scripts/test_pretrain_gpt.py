"""scripts/pretrain_gpt.py on the installed megatron.training, through the launcher."""

import re
from pathlib import Path

import pytest

from tests.megatron.launching import launch
from tests.megatron.pretraining import INTERLEAVED, MODEL, SCRIPT, write_text

pytestmark = pytest.mark.usefixtures("megatron_training")


def test_it_learns_the_text_in_an_interleaved_pipeline(tmp_path: Path) -> None:
    layout = [*INTERLEAVED, "--tensor-model-parallel-size", "2"]
    done = launch("--nproc", "4", SCRIPT, *MODEL, *layout, "--train-text", write_text(tmp_path), "--tensorboard-dir", tmp_path / "tb")
    assert done.returncode == 0, done.stderr[-4000:]
    losses = [float(x) for x in re.findall(r"lm loss: (\S+)", done.stdout)]
    assert len(losses) == 12
    assert 5.3 < losses[0] < 5.8, "untrained: about ln 256 = 5.55"
    assert min(losses[-3:]) < 4.0
    assert "validation loss at iteration 12" in done.stdout
    assert not (tmp_path / "tb" / "energy").exists(), "no flag, nothing of ours"


def test_mock_data_in_one_process(tmp_path: Path) -> None:
    short = [*MODEL, "--train-iters", "2", "--tokenizer-type", "NullTokenizer", "--vocab-size", "127", "--mock-data"]
    done = launch("--nproc", "1", SCRIPT, *short, "--data-cache-path", tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    assert len(re.findall(r"lm loss: ", done.stdout)) == 2


def test_help_shows_megatron_s_the_script_s_and_our_options() -> None:
    done = launch("--nproc", "1", SCRIPT, "--help")
    assert done.returncode == 0, done.stderr[-4000:]
    for option in ("--num-layers", "--train-text", "--energy-policy", "--energy-max-switches"):
        assert option in done.stdout


@pytest.mark.parametrize(("content", "said"), [(None, "no such file"), ("short", "5 bytes are too few for --seq-length 32")])
def test_a_text_that_cannot_be_used(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_text(content)
    done = launch("--nproc", "1", SCRIPT, *MODEL, "--train-text", path)
    assert done.returncode == 1
    assert f"error: --train-text {path}: {said}" in done.stderr
    assert "Traceback" not in done.stderr
