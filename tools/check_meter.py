"""How far the energy meter is off, on loads of known joules: a Markdown table.

    python tools/check_meter.py [--windows 200]

Emulated GPUs behave as the catalog says (a counter that steps, a power sensor that sees 25 ms of every 100 ms) on a clock that this
program moves, so nothing is waited for. The true joules are sums of power times duration over the load's own segments. Windows begin
at random moments, and their lengths vary by 5%, so that they are no multiples of the counter's steps (seeded).
"""

import argparse
import itertools
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pynvml

from megatron_energy.emulation.fault_rules import Disturb, Fail, Rule
from megatron_energy.emulation.faults import inject
from megatron_energy.emulation.install import install, uninstall
from megatron_energy.emulation.physics import power_w
from megatron_energy.emulation.state import GpuRecord, NodeState, state_path
from megatron_energy.gpus.meter import POLL_S, EnergyMeter
from megatron_energy.gpus.nvml import NvmlGpu

WINDOWS_S = (0.1, 0.5, 2.0, 5.0)
MODELS = ("a100-sxm4-80gb", "h100-sxm5-80gb")

LOADS: dict[str, tuple[tuple[float, float, float], ...]] = {
    "steady": ((1.0, 0.6, 0.3),),
    "training": ((0.31, 0.6, 0.3), (0.127, 0.1, 0.0), (0.47, 0.5, 0.2), (0.113, 0.0, 0.3)),
}
"""Repeated for ever: (s, compute, memory). No segment is slowed down by the power limit."""

NO_COUNTER = Fail("nvmlDeviceGetTotalEnergyConsumption", error="NOT_SUPPORTED")
NO_INSTANT = Fail("nvmlDeviceGetFieldValues", error="NOT_SUPPORTED")
SOURCES: dict[str, tuple[Rule, ...]] = {
    "counter": (),
    "integrated instant power": (NO_COUNTER,),
    "integrated instant power, 3% noise, steps of 1 W": (NO_COUNTER, Disturb(noise_share=0.03, quantum_w=1.0)),
    "integrated power usage (no instant power)": (NO_COUNTER, NO_INSTANT),
}


class Bench:
    """One GPU under a load, and the joules that it really uses."""

    def __init__(self, folder: Path, model: str, load: str) -> None:
        self.now_s = 1000.0
        self.true_j = 0.0
        NodeState.create(state_path(folder), model, 1, initial=GpuRecord(since_s=self.now_s)).close()
        install(f"{model}:1", folder, clock=lambda: self.now_s, sleep=self.advance)
        pynvml.nvmlInit()
        self._gpu = pynvml.nvmlLib.gpus[0]
        self._segments: Iterator[tuple[float, float, float]] = itertools.cycle(LOADS[load])
        self._until_s = self.now_s
        self._power_w = 0.0

    @property
    def uuid(self) -> str:
        """Of the GPU."""
        return str(self._gpu.uuid)

    def advance(self, duration_s: float) -> None:
        """Let time go by, with the load's changes on the way."""
        end_s = self.now_s + duration_s
        while self.now_s < end_s:
            if self.now_s >= self._until_s:
                self._next_segment()
            step_s = min(end_s, self._until_s) - self.now_s
            self.true_j += self._power_w * step_s
            self.now_s = min(end_s, self._until_s)

    def _next_segment(self) -> None:
        duration_s, compute, memory = next(self._segments)
        self._gpu.set_load(compute, memory)
        clock_mhz = self._gpu.model.sm_clock_max_mhz
        assert self._gpu.clock_mhz() == clock_mhz, "the power limit slows this load down: its joules are not those of the maximum clock"
        self._power_w = power_w(self._gpu.model, clock_mhz, compute, memory)
        self._until_s += duration_s


@dataclass(frozen=True)
class Error:
    """Absolute errors of many windows, in percent of the true joules; ``mean`` with its sign, over all of them together."""

    median: float
    p95: float
    worst: float
    mean: float


def error_of(model: str, load: str, source: str, window_s: float, windows: int, seed: int = 1) -> Error:
    """Measure ``windows`` windows of ``window_s`` seconds."""
    generator = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), model, load)
        try:
            with inject(*SOURCES[source]):
                found = [_one(bench, window_s, generator) for _ in range(windows)]
        finally:
            uninstall()
    ordered = sorted(100 * abs(measured_j / true_j - 1) for measured_j, true_j in found)
    total = 100 * (sum(measured_j for measured_j, _ in found) / sum(true_j for _, true_j in found) - 1)
    return Error(statistics.median(ordered), ordered[-(-95 * len(ordered) // 100) - 1], ordered[-1], total)


def _one(bench: Bench, window_s: float, generator: random.Random) -> tuple[float, float]:
    """One window: the joules measured and the true ones."""
    bench.advance(generator.uniform(0.0, 1.0))
    window_s *= generator.uniform(0.95, 1.05)
    meter = EnergyMeter(NvmlGpu(bench.uuid), lambda: bench.now_s, background=False)
    meter.open()
    before_j, end_s = bench.true_j, bench.now_s + window_s
    while (remaining_s := end_s - bench.now_s) > POLL_S:
        bench.advance(POLL_S)
        meter.poll()  # what the background thread does every POLL_S
    bench.advance(remaining_s)
    lap = meter.lap()
    meter.close()
    assert lap is not None and lap.energy_j is not None, lap
    return lap.energy_j, bench.true_j - before_j


def table(windows: int, models: tuple[str, ...] = MODELS) -> list[str]:
    """The rows."""
    head = " | ".join(f"{window_s:g} s" for window_s in WINDOWS_S)
    rows = [f"| GPU (emulated) | load | source | {head} |", "|---" * (3 + len(WINDOWS_S)) + "|"]
    for model, load, source in itertools.product(models, LOADS, SOURCES):
        errors = [error_of(model, load, source, window_s, windows) for window_s in WINDOWS_S]
        cells = " | ".join(f"{error.median:.1f} / {error.p95:.1f} / {error.worst:.1f} / {error.mean:+.1f}" for error in errors)
        rows.append(f"| {model} | {load} | {source} | {cells} |")
    return rows


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--windows", type=int, default=200, help="per cell (default: %(default)s)")
    windows = max(parser.parse_args(argv).windows, 1)
    print(f"Error in percent of the true joules: median / 95th percentile / worst of {windows} windows / all windows together.")
    print("Figures are emulated.\n")
    print("\n".join(table(windows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
