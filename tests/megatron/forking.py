"""A launcher's parent process for tests: a small program without torch that forks ranks."""

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.megatron.launching import REPOSITORY

PARENT = """
import os, sys, time, signal, atexit
from pathlib import Path
from megatron_energy.errors import UserError
from megatron_energy.megatron import fork

logs = Path(sys.argv[1])
ranks = fork.Ranks(count={count}, world_size={world}, first={first}, address="127.0.0.1", port=1234, logs=logs)

def here():
    # tells the other ranks which process this one is
    (logs / f"{{os.environ['RANK']}}.{{os.getpid()}}").touch()

def wait_for(name):
    while not (logs / name).exists():
        time.sleep(0.005)

def wait_until_reaped(rank):
    # until the parent has taken notice of its end
    while not (found := list(logs.glob(f"{{rank}}.*"))):
        time.sleep(0.005)
    while Path("/proc", found[0].suffix[1:]).exists():
        time.sleep(0.005)

def main():
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
{body}

sys.exit(fork.run(ranks, main))
"""


class Parent:
    """Runs ``body`` in every rank."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs = folder / "logs"

    def start(self, body: str, count: int = 3, world: int | None = None, first: int = 0) -> subprocess.Popen[str]:
        source = PARENT.format(count=count, world=world or count, first=first, body=textwrap.indent(textwrap.dedent(body), "    "))
        return subprocess.Popen(
            [sys.executable, "-c", source, self.logs],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )

    def run(self, body: str, count: int = 3, world: int | None = None, first: int = 0) -> tuple[int, str, str]:
        process = self.start(body, count, world, first)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    def log(self, rank: int) -> str:
        return (self.logs / f"rank-{rank}.log").read_text()
