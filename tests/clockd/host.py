"""A host with emulated GPUs and a clockd of its own, in wall time, for tests that kill processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from megatron_energy.clockd.client import ClockdClient
from megatron_energy.emulation.state import GpuRecord, NodeState, state_path
from tests.source_tree import ROOT

GPU = "a100-sxm4-80gb"
EVERYTHING = "[rule everybody]\nusers = *\ngpus = all\nclocks_mhz = 210-1410\npower_w = 100-400\n"


def wait_until(condition: Callable[[], object], what: str, longest_s: float = 20.0) -> float:
    """Wait for something; how long it took in s."""
    start_s = time.monotonic()
    while not condition():
        assert time.monotonic() - start_s < longest_s, f"not within {longest_s:g} s: {what}"
        time.sleep(0.002)
    return time.monotonic() - start_s


class Host:
    """Emulated GPUs in ``folder``, and how to run programs that see them."""

    def __init__(self, folder: Path, rules: str = EVERYTHING, gpus: int = 4) -> None:
        self.folder = folder
        self.rules, self.socket, self.state, self.audit = (folder / name for name in ("clockd.ini", "clockd.sock", "state", "audit.jsonl"))
        self.write_rules(rules)
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "megatron_energy" / "emulation" / "startup"), str(ROOT)]),
            "MEGATRON_ENERGY_EMULATED": f"{GPU}:{gpus}",
            "MEGATRON_ENERGY_EMULATED_DIR": str(folder / "emulated"),
        }
        self.node = NodeState.create(state_path(folder / "emulated"), GPU, gpus)
        self.uuids = [self.node.uuid(index) for index in range(gpus)]
        self.processes: list[subprocess.Popen[str]] = []

    def write_rules(self, text: str) -> None:
        self.rules.write_text(text)
        self.rules.chmod(0o644)

    def python(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start Python with the emulated GPUs."""
        process = subprocess.Popen([sys.executable, *arguments], env=self.environment, cwd=self.folder, text=True, **options)
        self.processes.append(process)
        return process

    @property
    def files(self) -> list[str]:
        return [f"--{name}={path}" for name, path in self._paths().items()]

    def _paths(self) -> dict[str, Path]:
        return {"rules": self.rules, "socket": self.socket, "state-dir": self.state, "audit-log": self.audit}

    def start(self, interpreter: str = sys.executable) -> subprocess.Popen[str]:
        """Start clockd, and wait until it listens."""
        command = ["-m", "megatron_energy.clockd", "run", *self.files]
        daemon = self.python(*command, executable=interpreter, stderr=subprocess.PIPE)
        assert daemon.stderr is not None
        for line in daemon.stderr:
            if "listening" in line:
                return daemon
        raise AssertionError(f"clockd did not start: exit status {daemon.wait()}")

    def client(self) -> ClockdClient:
        return ClockdClient.connect(self.socket)

    def gpu(self, index: int) -> GpuRecord:
        return self.node.gpu(index)

    def locked(self, index: int = 0) -> tuple[int, int]:
        """The range that the clocks of a GPU are locked to; (0, 0): not locked."""
        record = self.node.gpu(index)
        return record.locked_min_mhz, record.locked_max_mhz

    def limit_mw(self, index: int = 0) -> int:
        """Power limit; 0: the default."""
        return self.node.gpu(index).power_limit_mw

    def set_limit_mw(self, index: int, limit_mw: int) -> None:
        with self.node.edit(index) as record:
            record.power_limit_mw = limit_mw

    def events(self, name: str) -> list[dict[str, Any]]:
        """What the audit log says."""
        lines = self.audit.read_text().splitlines() if self.audit.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        self.node.close()


HOLDER = """
import json, os, sys, time
from pathlib import Path
from megatron_energy.clockd.client import ClockdClient
client = ClockdClient.connect(Path(sys.argv[1]))
lease = client.lease([sys.argv[2]], ttl_s=float(sys.argv[4]))
lease.set_max_clock(sys.argv[2], 1200)
lease.set_power_limit(sys.argv[2], 250.0)
if sys.argv[3] == "fork" and os.fork() == 0:
    time.sleep(60)      # keeps the socket open
print("holding", flush=True)
time.sleep(60)
"""


def hold(host: Host, gpu: str, *, fork: bool = False, ttl_s: float = 60.0) -> "subprocess.Popen[str]":
    """A process that leases a GPU, locks it to 1200 MHz and 250 W, and sleeps; with ``fork`` a child keeps its socket."""
    command = ["-c", HOLDER, str(host.socket), gpu, "fork" if fork else "", str(ttl_s)]
    process = host.python(*command, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "holding\n"
    return process


def kill_group(process: "subprocess.Popen[str]") -> None:
    os.killpg(process.pid, signal.SIGKILL)
