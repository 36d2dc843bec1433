"""The virtual Slurm cluster: what it refuses anywhere, and, where Slurm is installed, clocks after a cancelled and a killed job."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.slurm import bed
from tests.slurm.kills import try_way
from tests.source_tree import ROOT

SCRIPT = ROOT / "scripts" / "slurm" / "testbed.sh"


def run(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([SCRIPT, *arguments], env={**os.environ, **variables}, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ([], "testbed.sh: no action '': use up, down or status"),
        (["start"], "testbed.sh: no action 'start': use up, down or status"),
        (["up", "--node", "2"], "testbed.sh: no option --node: use --nodes N, --gpus N, --system"),
        (["up", "--nodes", "none"], "testbed.sh: --nodes 'none': give a whole number from 1 to 99"),
        (["up", "--gpus", "65"], "testbed.sh: --gpus '65': give a whole number from 1 to 64"),
    ],
)
def test_a_wrong_command_is_refused(arguments: list[str], advice: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stderr.strip()) == (2, advice)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_folder_of_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    done = run("down", MEGATRON_ENERGY_TESTBED=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr == f"testbed.sh: {tmp_path} was not made by this script: set MEGATRON_ENERGY_TESTBED to another folder\n"
    assert (tmp_path / "thesis.txt").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_missing_environment_is_told(tmp_path: Path) -> None:
    done = run("up", MEGATRON_ENERGY_VENV=str(tmp_path / "venv"), MEGATRON_ENERGY_TESTBED=str(tmp_path / "bed"))
    assert done.stderr == f"testbed.sh: no Python environment in {tmp_path}/venv: run scripts/setup.sh first\n"
    assert (done.returncode, (tmp_path / "bed").exists()) == (2, False)


@pytest.mark.skipif(bed.missing() is not None, reason=str(bed.missing()))
def test_clocks_are_restored_on_every_node() -> None:
    """tools/check_slurm.py does this with more nodes and in more ways."""
    with bed.running(nodes=2, gpus=2, first_port=17300) as cluster:
        assert "2 nodes with 2 emulated GPUs each are up" in cluster.said
        assert "is up: export SLURM_CONF=" in cluster.testbed("up", "--nodes", "2", "--gpus", "2")  # a second time changes nothing
        outcomes = [try_way(cluster, way, gpus=2) for way in ("scancel", "kill -9 of a task")]
        assert [(outcome.state, outcome.epilogs) for outcome in outcomes] == [("CANCELLED", 2), ("FAILED", 2)]
        folder = cluster.state
    assert not folder.exists()
