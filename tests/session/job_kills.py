"""Real Megatron on CPU ranks under a plan, on emulated GPUs in wall time, killed in several ways: are the clocks back, and how soon?"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from megatron_energy.cli.main import main
from tests.clockd.host import Host, wait_until
from tests.source_tree import ROOT

SCRIPT = ROOT / "tests" / "session" / "eventful_gpt.py"
CLOCKS_MHZ = (1410, 1200, 990)
FOUND_MW = 300_000  # a site's own limit on every GPU
STARTING_S = 120.0

WAYS = ("all processes at once", "the launcher alone", "one rank alone")


def write_plan(folder: Path, stages: int) -> Path:
    """A plan that lowers the clocks of all GPUs: for a job whose energy falls with its clock, and that may take its time."""
    rows = ["stage,instruction,frequency,time,energy", "0,blocking,1410,1,1"]
    for stage in range(stages):
        for instruction, time_s in (("forward", 0.01), ("backward", 0.02)):
            rows += [f"{stage},{instruction},{mhz},{time_s * 1410 / mhz},{time_s * 300 * (mhz / 1410) ** 2}" for mhz in CLOCKS_MHZ]
    profile, plan = folder / "profile.csv", folder / "plan.json"
    profile.write_text("\n".join(rows) + "\n")
    sizes = ["--pipeline", str(stages), "--chunks", "2", "--microbatches", str(stages), "--p2p", "overlap"]
    with redirect_stdout(StringIO()):
        assert main(["plan", "--profile", str(profile), *sizes, "--policy", "uniform", "--slowdown", "50", "--out", str(plan)]) == 0
    return plan


@dataclass
class Job:
    """A training that does not end by itself.

    Attributes:
        launcher: its process id; the ranks are its children.
        gpus: indices of its GPUs.
        folder: its files.
    """

    launcher: int
    gpus: Sequence[int]
    folder: Path

    @property
    def ranks(self) -> list[int]:
        """Process ids; none of a job that has ended."""
        try:
            return [int(pid) for pid in Path(f"/proc/{self.launcher}/task/{self.launcher}/children").read_text().split()]
        except FileNotFoundError:
            return []

    @property
    def said(self) -> str:
        """What it printed."""
        logs = [self.folder / "log", *sorted((self.folder / "energy" / "logs").glob("*"))]
        return "".join(path.read_text() for path in logs if path.exists())


class Jobs:
    """Starts and kills jobs on one host of emulated GPUs."""

    def __init__(self, host: Host, ranks: int) -> None:
        self.host, self.count = host, ranks
        for index in range(len(host.uuids)):
            host.set_limit_mw(index, FOUND_MW)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MEGATRON_ENERGY_EMULATED"):
            environment.pop(name, None)
        self._jobs: list[Job] = []
        self._ready = False  # its imports are done
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.session.job_server"],
            cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._plan = write_plan(host.folder, ranks)
        arguments = ["--pipeline", str(ranks), "--virtual", "2", "--microbatches", str(ranks), "--layers", str(2 * ranks)]
        case = {"arguments": [*arguments, "--overlap", "--keep-outputs", "--steps", "1000000"], "events": {}}
        (host.folder / "cases.json").write_text(json.dumps({"endless": case}))

    def start(self, name: str, gpus: Sequence[int], clockd: bool = True) -> Job:
        """A job on these GPUs, told so as Slurm does; with the host's clockd, or without any."""
        folder = self.host.folder / name
        folder.mkdir()
        visible = {
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)),
            "MEGATRON_ENERGY_CLOCKD": str(self.host.socket if clockd else folder / "no.sock"),
        }
        emulated = {key: value for key, value in self.host.environment.items() if key.startswith("MEGATRON_ENERGY_EMULATED")}
        energy = ["--energy-device", "nvml", "--energy-policy", "uniform", "--energy-slowdown", "50"]
        # Iterations of 20 ms: one alone may end before a counter has stepped.
        energy += ["--energy-baseline-iterations", "10", "--energy-recheck", "0"]
        energy += ["--energy-plan", str(self._plan), "--energy-dir", str(folder / "energy")]
        training = [str(SCRIPT), "--cases", str(self.host.folder / "cases.json"), "--out", str(folder)]
        request = {
            "environment": {**visible, **emulated},
            "arguments": ["--nproc", str(self.count), *training, *energy],
            "log": str(folder / "log"),
        }
        job = Job(int(self._ask(json.dumps(request))), gpus, folder)
        self._jobs.append(job)
        return job

    def _ask(self, line: str) -> str:
        assert self._server.stdin is not None and self._server.stdout is not None
        if not self._ready:
            assert self._server.stdout.readline() == "ready\n"
            self._ready = True
        self._server.stdin.write(line + "\n")
        self._server.stdin.flush()
        return self._server.stdout.readline()

    def wait_for_plan(self, job: Job) -> None:
        """Until the job runs under its plan: all its GPUs at lowered clocks."""

        def runs() -> bool:
            assert Path(f"/proc/{job.launcher}").exists(), job.said
            return (job.folder / "energy" / "plan.json").exists() and all(self.is_lowered(index) for index in job.gpus)

        wait_until(runs, "a job under its plan", STARTING_S)

    def is_lowered(self, index: int) -> bool:
        """Whether a GPU's clock is locked below its maximum."""
        return 0 < self.host.locked(index)[1] < CLOCKS_MHZ[0]

    def is_as_found(self, index: int) -> bool:
        """Whether a GPU has no lock, and the power limit that it had."""
        return self.host.locked(index) == (0, 0) and self.host.limit_mw(index) == FOUND_MW

    def kill(self, job: Job, way: str = WAYS[0]) -> float:
        """SIGKILL; seconds until all of the job's GPUs are as found."""
        ranks = job.ranks
        victims = {WAYS[0]: [job.launcher, *ranks], WAYS[1]: [job.launcher], WAYS[2]: ranks[:1]}[way]
        start_s = time.monotonic()
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: all(self.is_as_found(index) for index in job.gpus), f"restored after a kill of {way}", 60.0)
        took_s = time.monotonic() - start_s
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in (job.launcher, *ranks)), "the job has ended", 60.0)
        self._jobs.remove(job)
        return took_s

    def close(self) -> None:
        """End what is left."""
        for job in list(self._jobs):
            self.kill(job)
        self._server.kill()
        self._server.wait()
        for pipe in (self._server.stdin, self._server.stdout):
            if pipe is not None:
                pipe.close()
