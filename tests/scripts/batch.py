"""Runs a batch script of scripts/slurm as Slurm would on the job's first node, with stand-ins for Slurm's commands and for Python."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.source_tree import ROOT

# Writes down its options, then starts the command once per task, as on all nodes.
SRUN = """
import json, os, subprocess, sys
words = sys.argv[1:]
start = words.index("bash")
with open(os.environ["RECORD"], "a") as file:
    print(json.dumps({"srun": words[:start]}), file=file)
nodes, tasks = int(os.environ["SLURM_JOB_NUM_NODES"]), int(os.environ["SLURM_NTASKS"])
for task in range(tasks):
    node, local = divmod(task, tasks // nodes)
    here = {"SLURM_PROCID": str(task), "SLURM_NODEID": str(node), "SLURM_LOCALID": str(local)}
    subprocess.run(words[start:], env={**os.environ, **here}, check=True)
"""

PYTHON = """
import json, os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
here = {name: os.environ[name] for name in names if name in os.environ}
with open(os.environ["RECORD"], "a") as file:
    print(json.dumps({"python": sys.argv[1:], **here}), file=file)
"""

SCONTROL = 'import sys\nassert sys.argv[1:] == ["show", "hostnames", "n[1-4]"]\nprint("n1\\nn2\\nn3\\nn4")\n'
SINFO = 'import sys\nassert sys.argv[1:] == ["--noheader", "--nodes", "n1", "--format", "%o"]\nprint("192.0.2.7")\n'


@dataclass(frozen=True)
class Batch:
    """What a batch script did.

    Attributes:
        status: its exit status.
        out, error: what it printed.
        srun: options of srun; empty where it was not called.
        calls: every start of Python: its arguments, and what torch.distributed finds in the environment.
    """

    status: int
    out: str
    error: str
    srun: list[str]
    calls: list[dict[str, str | list[str]]]

    @property
    def arguments(self) -> list[str]:
        """Arguments of the first rank (or agent)."""
        found = self.calls[-1]["python"]
        assert isinstance(found, list)
        return found


def run_batch(script: str, folder: Path, *, nodes: int, gpus: int, tasks_per_node: int, **variables: str) -> Batch:
    """Run ``scripts/slurm/SCRIPT`` in a job on ``nodes`` nodes with ``gpus`` GPUs each."""
    programs = folder / "bin"
    programs.mkdir()
    for name, code in (("srun", SRUN), ("python", PYTHON), ("scontrol", SCONTROL), ("sinfo", SINFO)):
        program = programs / name
        program.write_text(f"#!{sys.executable} -IS\n{code}")
        program.chmod(0o755)
    record = folder / "record.jsonl"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "MASTER"))}
    job = {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "RECORD": str(record),
        "RUN": str(folder / "run"),
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": "n[1-4]",
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_GPUS_ON_NODE": str(gpus),
        "SLURM_NTASKS": str(nodes * tasks_per_node),
        "SLURM_CPUS_PER_TASK": "4",
    }
    command = ["bash", str(ROOT / "scripts" / "slurm" / script)]
    done = subprocess.run(command, cwd=ROOT, env={**inherited, **job, **variables}, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    options = next((line["srun"] for line in lines if "srun" in line), [])
    return Batch(done.returncode, done.stdout, done.stderr, options, [line for line in lines if "python" in line])
