"""The test bed of scripts/slurm/testbed.sh, driven from Python: jobs, and the clocks of every virtual node's emulated GPUs."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from megatron_energy.emulation.state import NodeState, state_path
from tests.source_tree import ROOT

NEEDED = ("slurmctld", "slurmd", "sbatch", "munged")
SBIN = f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin"


def missing() -> str | None:
    """Why there can be no test bed here; None: there can."""
    if os.geteuid() != 0:
        return "needs root"
    absent = [program for program in NEEDED if shutil.which(program, path=SBIN) is None]
    return f"needs Slurm ({absent[0]} is missing): scripts/slurm/testbed.sh up --system installs it" if absent else None


def wait_until(condition: Callable[[], object], what: str, longest_s: float) -> float:
    """Wait for something; how long it took in s."""
    start_s = time.monotonic()
    while not condition():
        if time.monotonic() - start_s > longest_s:
            raise AssertionError(f"not within {longest_s:g} s: {what}")
        time.sleep(0.05)
    return time.monotonic() - start_s


class Bed:
    """A running test bed.

    Attributes:
        state: its folder.
        nodes: names of its virtual nodes.
        said: what the script printed when it came up.
    """

    def __init__(self, folder: Path, nodes: int, gpus: int, first_port: int) -> None:
        self.folder, self.state, self.gpus = folder, folder / "state", gpus
        self.nodes = [f"n{index + 1}" for index in range(nodes)]
        binaries = str(Path(sys.executable).parent)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SLURM")},
            "PATH": f"{binaries}{os.pathsep}{SBIN}",
            "PYTHONPATH": str(ROOT),
            "MEGATRON_ENERGY_VENV": sys.prefix,
            "MEGATRON_ENERGY_TESTBED": str(self.state),
            "MEGATRON_ENERGY_TESTBED_PORT": str(first_port),
            "SLURM_CONF": str(self.state / "slurm.conf"),
        }
        self.said = ""

    def testbed(self, *arguments: str) -> str:
        """Run the script; what it prints."""
        return self.run(str(ROOT / "scripts" / "slurm" / "testbed.sh"), *arguments)

    def up(self, *options: str) -> None:
        """Start it."""
        self.said = self.testbed("up", "--nodes", str(len(self.nodes)), "--gpus", str(self.gpus), *options)

    def run(self, *command: str, **variables: str) -> str:
        """Run a command of Slurm's; what it prints."""
        environment = {**self.environment, **variables}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise AssertionError(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout

    def submit(self, *words: str, **variables: str) -> int:
        """Submit a job (``sbatch`` and these words); its number."""
        return int(self.run("sbatch", "--parsable", *words, **variables))

    def job(self, number: int) -> dict[str, str]:
        """What Slurm knows of a job: ``JobState``, ``Restarts`` and so on."""
        return dict(re.findall(r"(\w+)=(\S*)", self.run("scontrol", "--oneliner", "show", "job", str(number))))

    def in_queue(self, number: int) -> bool:
        """Whether a job waits, runs, or is still being cleaned up: the Epilog belongs to that."""
        return bool(self.run("squeue", "--noheader", "--jobs", str(number)).strip())

    def wait(self, number: int, longest_s: float) -> dict[str, str]:
        """Wait for the end of a job, its Epilogs included."""
        wait_until(lambda: not self.in_queue(number), f"the end of job {number}", longest_s)
        return self.job(number)

    def locked(self, node: str) -> list[int]:
        """Numbers of the GPUs of a node whose clocks are locked, or whose power limit is not the default."""
        state = NodeState(state_path(self.state / "gpus", node))
        records = [(index, state.gpu(index)) for index in range(self.gpus)]
        state.close()
        return [index for index, record in records if record.locked_max_mhz or record.power_limit_mw not in (0, 400_000)]

    def all_locked(self, nodes: Sequence[str] | None = None) -> dict[str, list[int]]:
        """Node -> its locked GPUs, where there are any."""
        return {node: gpus for node in nodes or self.nodes if (gpus := self.locked(node))}

    def hooks(self, node: str) -> str:
        """What the Prolog and the Epilog of a node have printed."""
        log = self.state / "log" / f"hooks.{node}.log"
        return log.read_text() if log.exists() else ""

    def daemon(self, node: str) -> int:
        """Process id of a node's slurmd."""
        return int((self.state / node / "slurmd.pid").read_text())

    def start_daemon(self, node: str) -> None:
        """Start a node's slurmd again, as systemd would."""
        self.run("slurmd", "-f", self.environment["SLURM_CONF"], "-N", node)


@contextmanager
def running(nodes: int, gpus: int, first_port: int, *options: str) -> Iterator[Bed]:
    """A test bed in a folder of its own; nothing is left of it."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)
    bed = Bed(folder, nodes, gpus, first_port)
    try:
        bed.up(*options)
        yield bed
    finally:
        bed.testbed("down")
        shutil.rmtree(folder, ignore_errors=True)
