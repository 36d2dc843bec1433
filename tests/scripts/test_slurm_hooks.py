"""Slurm's Prolog, Epilog and TaskProlog: what they ask of clockd, whatever state they find."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clockd.host import Host
from tests.source_tree import ROOT

HOOKS = ROOT / "scripts" / "slurm" / "hooks"
JOB = {"SLURM_JOB_ID": "4711", "SLURM_JOB_UID": "1003", "SLURM_JOB_GPUS": "0,2"}


class Site:
    """Where hooks run: a stand-in for megatron-energy that notes what it is asked and ends with the status it is told."""

    def __init__(self, folder: Path, status: int = 0) -> None:
        self.jobs, self.asked = folder / "jobs", folder / "asked"
        self.command = folder / "megatron-energy"
        self.command.write_text(f'#!/bin/sh\necho "$*; $(ls {self.jobs} 2>/dev/null)" >>{self.asked}\nexit {status}\n')
        self.command.chmod(0o755)

    def run(self, hook: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        environment = {"PATH": os.environ["PATH"], "MEGATRON_ENERGY_JOBS": str(self.jobs), "MEGATRON_ENERGY_COMMAND": str(self.command)}
        return subprocess.run([HOOKS / hook], env={**environment, **variables}, capture_output=True, text=True, check=False)

    def calls(self) -> list[str]:
        return self.asked.read_text().splitlines() if self.asked.exists() else []


def test_the_prolog_restores_and_then_says_whose_the_gpus_are(tmp_path: Path) -> None:
    site = Site(tmp_path)
    assert site.run("prolog.sh", **JOB).returncode == 0
    assert site.calls() == ["clockd restore --gpu 0,2; "]
    assert json.loads((site.jobs / "4711.json").read_text()) == {"uid": 1003, "gpus": "0,2"}
    assert (site.jobs / "4711.json").stat().st_mode & 0o777 == 0o644


def test_the_epilog_takes_the_gpus_away_before_it_restores(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.run("prolog.sh", **JOB)
    assert site.run("epilog.sh", **JOB, CLOCKD_FILES="--state-dir /srv/state").returncode == 0
    assert site.calls()[1:] == ["clockd restore --gpu 0,2 --state-dir /srv/state; "]
    assert list(site.jobs.iterdir()) == []


@pytest.mark.parametrize("hook", ["prolog.sh", "epilog.sh"])
@pytest.mark.parametrize(("status", "drained"), [(1, True), (2, False)])
def test_a_node_is_drained_only_for_a_gpu_that_is_not_restored(tmp_path: Path, hook: str, status: int, drained: bool) -> None:
    done = Site(tmp_path, status).run(hook, **JOB)
    assert done.returncode == (1 if drained else 0)
    assert done.stderr == f"{hook[:-3]}: job 4711: clocks of GPUs 0,2 are not restored, exit status {status}\n"


@pytest.mark.parametrize("hook", ["prolog.sh", "epilog.sh"])
def test_hooks_outlive_a_missing_installation_and_jobs_without_gpus(tmp_path: Path, hook: str) -> None:
    site = Site(tmp_path)
    done = site.run(hook, **JOB, MEGATRON_ENERGY_COMMAND="/not/there")
    assert done.returncode == 0
    assert "exit status 127" in done.stderr
    assert site.run(hook, SLURM_JOB_ID="4711", SLURM_JOB_UID="1003").returncode == 0
    assert site.calls() == []


def test_the_task_prolog(tmp_path: Path) -> None:
    path = tmp_path / "clockd.sock"
    site = Site(tmp_path)
    assert site.run("task_prolog.sh", MEGATRON_ENERGY_CLOCKD=str(path)).stdout == ""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        assert site.run("task_prolog.sh", MEGATRON_ENERGY_CLOCKD=str(path)).stdout == f"export MEGATRON_ENERGY_CLOCKD={path}\n"


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"SLURM_PROCID": "0", "SLURMD_TRES_FREQ": "gpu:low"}, True),
        ({"SLURM_PROCID": "1", "SLURMD_TRES_FREQ": "gpu:low"}, False),
        ({"SLURM_PROCID": "0"}, False),
    ],
)
def test_gpu_freq_is_told_once(tmp_path: Path, variables: dict[str, str], told: bool) -> None:
    out = Site(tmp_path).run("task_prolog.sh", **variables).stdout
    line = "print megatron-energy: --gpu-freq (gpu:low) sets GPU clocks in this job: use it without an energy plan only\n"
    assert out == (line if told else "")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    found = Host(tmp_path)
    yield found
    found.close()


def test_the_epilog_removes_a_lock_that_was_set_around_clockd(host: Host, tmp_path: Path) -> None:
    """With a real clockd: of the job's GPUs only, by Slurm's numbers."""
    for index in range(3):
        with host.node.edit(index) as record:
            record.locked_min_mhz, record.locked_max_mhz = 210, 705
    host.start()
    wrapper = tmp_path / "megatron-energy"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} -m megatron_energy "$@"\n')
    wrapper.chmod(0o755)
    environment = {**host.environment, **JOB, "MEGATRON_ENERGY_COMMAND": str(wrapper), "MEGATRON_ENERGY_CLOCKD": str(host.socket)}
    environment |= {"CLOCKD_FILES": " ".join(file for file in host.files if "socket" not in file)}
    done = subprocess.run([HOOKS / "epilog.sh"], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"{host.uuids[0]} restored", f"{host.uuids[2]} restored"]
    assert [host.locked(index) for index in range(3)] == [(0, 0), (210, 705), (0, 0)]
