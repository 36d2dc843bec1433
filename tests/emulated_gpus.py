"""Emulated GPUs in the test's own process, on a clock that the test moves."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pynvml

from megatron_energy.emulation.gpu import EmulatedGpu
from megatron_energy.emulation.install import install, uninstall
from megatron_energy.emulation.nvml import EmulatedNvml
from megatron_energy.emulation.state import GpuRecord, NodeState, TimeSource, state_path


class FakeClock:
    """Seconds that pass only when a test, or a sleep, says so."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s


@dataclass
class EmulatedNode:
    node: NodeState
    clock: FakeClock
    gpus: list[EmulatedGpu]


@contextmanager
def emulated_node(
    directory: Path, specification: str = "a100-sxm4-80gb:4", *, time_source: TimeSource = "wall", initial: GpuRecord | None = None
) -> Iterator[EmulatedNode]:
    """Install emulated GPUs in ``directory`` and initialise NVML; take them away again at the end."""
    clock = FakeClock()
    model, _, count = specification.partition(":")
    record = initial or GpuRecord(since_s=clock.now_s if time_source == "wall" else 0.0)
    NodeState.create(state_path(directory), model, int(count), time_source=time_source, initial=record).close()
    node = install(specification, directory, clock=clock, sleep=clock.sleep)
    pynvml.nvmlInit()
    try:
        library = pynvml.nvmlLib
        assert isinstance(library, EmulatedNvml)
        yield EmulatedNode(node, clock, library.gpus)
    finally:
        uninstall()
