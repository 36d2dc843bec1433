"""The operator's page: its rules are understood, its Slurm scripts do what clockd expects."""

import os
import re
import subprocess
from pathlib import Path

from megatron_energy.clockd.peers import Peer
from megatron_energy.clockd.rules import Range, load
from megatron_energy.clockd.slurm import job_gpus_from_prolog
from tests.source_tree import ROOT

PAGE = (ROOT / "docs" / "clockd.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_example_of_rules(tmp_path: Path) -> None:
    (text,) = blocks("ini")
    path = tmp_path / "clockd.ini"
    path.write_text(text)
    path.chmod(0o644)
    rules = load(path)
    assert [(rule.name, rule.gpus) for rule in rules.rules] == [
        ("training", "slurm-job"),
        ("test-bench", {"GPU-5d3c8e02-2d4a-4c57-9be0-5f1f2c8f7a11"}),
    ]
    assert (rules.rules[0].clocks_mhz, rules.rules[1].power_mw) == (Range(600, 1410), None)


def test_the_slurm_scripts(tmp_path: Path) -> None:
    prolog, epilog = blocks("sh")
    jobs = tmp_path / "jobs"
    variables = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "4711", "SLURM_JOB_UID": "1003", "SLURM_JOB_GPUS": "0,3"}

    def run(script: str, **changes: str) -> None:
        text = script.replace("/run/megatron-energy/jobs", str(jobs))
        subprocess.run(["sh", "-e"], input=text, env={**variables, **changes}, text=True, check=True)

    job_gpus = job_gpus_from_prolog(jobs, {0: "GPU-a", 1: "GPU-b", 2: "GPU-c", 3: "GPU-d"}, tmp_path)
    peer = Peer(pid=1, uid=1003, gids=frozenset())
    run(prolog)
    assert job_gpus(peer) == {"GPU-a", "GPU-d"}
    run(epilog)
    assert job_gpus(peer) == set()
    run(prolog, SLURM_JOB_GPUS="")  # a job without GPUs leaves nothing
    assert list(jobs.iterdir()) == []
