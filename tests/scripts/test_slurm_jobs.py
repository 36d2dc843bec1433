"""The submission scripts that people copy: what they start on which node, and what they refuse."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.scripts.batch import run_batch
from tests.source_tree import ROOT

FOLDER = ROOT / "scripts" / "slurm"
EMULATED = "scripts/slurm/gpt_emulated.sh"
TASK_PER_GPU = ("srun.sbatch", "container.sbatch")


def headers(script: str) -> dict[str, str]:
    """The #SBATCH options of a script."""
    lines = re.findall(r"^#SBATCH --([a-z-]+)(?:=(.*))?$", (FOLDER / script).read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(lines)


@pytest.mark.parametrize("script", ["torchrun.sbatch", "srun.sbatch", "container.sbatch", "requeue.sbatch"])
def test_the_scripts_ask_for_16_gpus(script: str) -> None:
    asked = headers(script)
    assert int(asked["nodes"]) * int(asked["gpus-per-node"]) == 16
    assert asked["ntasks-per-node"] == ("1" if script == "torchrun.sbatch" else asked["gpus-per-node"])


@pytest.mark.parametrize(("nodes", "gpus"), [(2, 8), (4, 4)])
def test_a_torchrun_per_node(tmp_path: Path, nodes: int, gpus: int) -> None:
    batch = run_batch("torchrun.sbatch", tmp_path, nodes=nodes, gpus=gpus, tasks_per_node=1)
    assert (batch.status, batch.error) == (0, "")
    assert batch.srun == ["--cpus-per-task=4", "--kill-on-bad-exit=1"]
    assert len(batch.calls) == nodes
    for node, call in enumerate(batch.calls):
        words = call["python"]
        agent = f"-m torch.distributed.run --node-rank {node} --nnodes {nodes} --nproc-per-node {gpus} --master-addr 192.0.2.7"
        assert " ".join(words).startswith(f"{agent} --master-port 24711 -m megatron_energy.run scripts/pretrain_gpt.py --tensor")
        assert words[-4:] == ["--energy-policy", "measure", "--energy-dir", str(tmp_path / "run" / "energy")]


@pytest.mark.parametrize(("nodes", "gpus"), [(2, 8), (4, 4)])
def test_a_task_per_gpu(tmp_path: Path, nodes: int, gpus: int) -> None:
    batch = run_batch("srun.sbatch", tmp_path, nodes=nodes, gpus=gpus, tasks_per_node=gpus)
    assert (batch.status, batch.error) == (0, "")
    for rank, call in enumerate(batch.calls):
        assert call["python"][:3] == ["-m", "megatron_energy.run", "scripts/pretrain_gpt.py"]
        found = (call["RANK"], call["LOCAL_RANK"], call["WORLD_SIZE"], call["MASTER_ADDR"], call["MASTER_PORT"])
        assert found == (str(rank), str(rank % gpus), "16", "192.0.2.7", "24711")
    assert len(batch.calls) == 16


def test_containers_get_their_options_from_srun(tmp_path: Path) -> None:
    image = tmp_path / "energy.sqsh"
    image.touch()
    batch = run_batch("container.sbatch", tmp_path, nodes=2, gpus=8, tasks_per_node=8, IMAGE=str(image), PYTHON="/of/the/host")
    assert (batch.status, batch.error) == (0, "")
    assert f"--container-image={image}" in batch.srun
    assert f"--container-mounts={ROOT}:{ROOT},/run/megatron-energy:/run/megatron-energy" in batch.srun
    assert len(batch.calls) == 16


@pytest.mark.parametrize(
    ("image", "advice"),
    [
        ({}, "no image: set IMAGE to a .sqsh file or REGISTRY#NAME:TAG, see docs/slurm.md\n"),
        ({"IMAGE": "missing.sqsh"}, f"no image missing.sqsh in {ROOT}: make it as docs/slurm.md says, or set IMAGE to another\n"),
    ],
)
def test_an_image_has_to_be_there(tmp_path: Path, image: dict[str, str], advice: str) -> None:
    batch = run_batch("container.sbatch", tmp_path, nodes=2, gpus=8, tasks_per_node=8, **image)
    assert (batch.status, batch.error) == (2, advice)
    assert not batch.calls


def test_an_image_of_a_registry_is_left_to_pyxis(tmp_path: Path) -> None:
    batch = run_batch("container.sbatch", tmp_path, nodes=2, gpus=8, tasks_per_node=8, IMAGE="nvcr.io#team/energy:1")
    assert (batch.status, batch.error) == (0, "")
    assert "--container-image=nvcr.io#team/energy:1" in batch.srun


def test_the_rehearsal_needs_no_gpu(tmp_path: Path) -> None:
    batch = run_batch("srun.sbatch", tmp_path, nodes=4, gpus=4, tasks_per_node=4, JOB=EMULATED)
    assert (batch.status, batch.error) == (0, "")
    corpus, first = batch.calls[0]["python"], batch.calls[1]["python"]
    assert corpus == ["scripts/make_corpus.py", "--out", str(tmp_path / "run" / "corpus.txt")]
    assert first[:4] == ["-m", "megatron_energy.run", "--cpu", "scripts/pretrain_gpt.py"]
    assert first[first.index("--energy-policy") :][:2] == ["--energy-policy", "segments"]
    assert first[-2:] == ["--energy-emulated-gpus-per-node", "4"]


@pytest.mark.parametrize(
    ("left", "flag", "file"),
    [
        (["profile.csv", "plan.json"], "--energy-plan", "plan.json"),
        (["profile.csv"], "--energy-profile", "profile.csv"),
    ],
)
def test_a_run_that_goes_on_need_not_learn_again(tmp_path: Path, left: list[str], flag: str, file: str) -> None:
    energy = tmp_path / "run" / "energy"
    energy.mkdir(parents=True)
    for name in left:
        (energy / name).touch()
    batch = run_batch("requeue.sbatch", tmp_path, nodes=4, gpus=4, tasks_per_node=4, JOB=EMULATED, SLURM_RESTART_COUNT="1")
    assert (batch.status, batch.error) == (0, "")
    assert "job 4711 (start 2): 16 ranks" in batch.out
    assert batch.arguments[-2:] == [flag, str(energy / file)]
    assert batch.arguments[batch.arguments.index("--load") :][:2] == ["--load", str(tmp_path / "run" / "checkpoints")]


@pytest.mark.parametrize("growing", ["--rampup-batch-size 16 16 1000", "--step-batch-size-schedule '0:16 1000:32'"])
def test_a_growing_batch_goes_on_from_the_profile(tmp_path: Path, growing: str) -> None:
    """A plan is for one number of microbatches: clocks would stay at maximum once that has grown."""
    (tmp_path / "job.sh").write_text(f". {EMULATED}\nTRAINING+=({growing})\n")
    energy = tmp_path / "run" / "energy"
    energy.mkdir(parents=True)
    for name in ("profile.csv", "plan.json"):
        (energy / name).touch()
    batch = run_batch("requeue.sbatch", tmp_path, nodes=4, gpus=4, tasks_per_node=4, JOB=str(tmp_path / "job.sh"))
    assert (batch.status, batch.error) == (0, "")
    assert batch.arguments[-2:] == ["--energy-profile", str(energy / "profile.csv")]


GPU_FREQ = "--gpu-freq=medium sets GPU clocks, and so would the plan: submit without it, or with ENERGY_POLICY=measure\n"


@pytest.mark.parametrize("script", ["torchrun.sbatch", "srun.sbatch", "container.sbatch", "requeue.sbatch"])
def test_gpu_freq_is_refused_where_clocks_are_planned(tmp_path: Path, script: str) -> None:
    tasks = 1 if script == "torchrun.sbatch" else 4
    variables = {"SLURM_GPU_FREQ": "medium", "ENERGY_POLICY": "segments", "IMAGE": "nvcr.io#team/energy:1"}
    batch = run_batch(script, tmp_path, nodes=4, gpus=4, tasks_per_node=tasks, **variables)
    assert (batch.status, batch.error) == (2, GPU_FREQ)
    assert not batch.calls


def test_gpu_freq_may_be_measured(tmp_path: Path) -> None:
    batch = run_batch("srun.sbatch", tmp_path, nodes=4, gpus=4, tasks_per_node=4, SLURM_GPU_FREQ="medium")
    assert (batch.status, batch.error) == (0, "")


@pytest.mark.parametrize(
    ("nodes", "tasks_per_node", "variables", "advice"),
    [
        (2, 4, {}, "scripts/slurm/gpt.sh is made for 16 GPUs, this job has 8: use --nodes=2 --gpus-per-node=8 or --nodes=4"),
        (4, 1, {}, "4 tasks for 16 GPUs: give --ntasks-per-node the number of --gpus-per-node"),
        (4, 4, {"JOB": "other.sh"}, "no other.sh in "),
        (4, 4, {"JOB": EMULATED, "WORLD_SIZE": "16", "SLURM_GPUS_ON_NODE": ""}, "no GPUs in this job: submit with --gpus-per-node"),
        (4, 4, {"RUN": "/dev/null/run"}, "cannot write to /dev/null/run: set RUN to a folder that all nodes can write to"),
        (4, 4, {"PYTHON": "/no/python"}, "no /no/python on this node: submit from an active environment that all nodes see, or set PYTHON"),
        (4, 4, {"SLURM_JOB_ID": ""}, "no Slurm job here: submit this script with sbatch"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(
    tmp_path: Path, nodes: int, tasks_per_node: int, variables: dict[str, str], advice: str
) -> None:
    batch = run_batch("srun.sbatch", tmp_path, nodes=nodes, gpus=4, tasks_per_node=tasks_per_node, **variables)
    assert batch.status == 2
    assert advice in batch.error
    assert len(batch.error.splitlines()) == 1
    assert not [call for call in batch.calls if "megatron_energy.run" in call["python"]]


@pytest.mark.parametrize("script", ["torchrun.sbatch", "srun.sbatch", "container.sbatch", "requeue.sbatch"])
def test_another_folder_is_told(tmp_path: Path, script: str) -> None:
    done = subprocess.run(["bash", str(FOLDER / script)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, f"no scripts/slurm/job.sh in {tmp_path}: submit from the top of the checkout\n")
