"""A SIGKILL at any line of what changes a GPU and keeps what has to be undone: the next start restores."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from megatron_energy.clockd.controls import Controls
from megatron_energy.clockd.hardware import Hardware
from megatron_energy.clockd.saved import StateDirectory
from megatron_energy.gpus.nvml import NvmlGpu
from tests.emulated_gpus import EmulatedNode, emulated_node

FILES = ("clockd/controls.py", "clockd/saved.py", "clockd/hardware.py")
FOUND = (0, 300_000)
EVERY = 11  # lines; 1 takes ten times as long


def controls_of(node: EmulatedNode, state: StateDirectory) -> Controls:
    gpu = Hardware(NvmlGpu(node.gpus[0].uuid))
    return Controls({gpu.uuid: gpu}, state, None, lambda _event, **_facts: None, node.clock)


def state_of(node: EmulatedNode) -> tuple[int, int]:
    record = node.node.gpu(0)
    return record.locked_max_mhz, record.power_limit_mw


def changes(node: EmulatedNode, folder: Path) -> None:
    """Two leases' worth of clocks and limits."""
    controls, uuid = controls_of(node, StateDirectory(folder, "boot")), node.gpus[0].uuid
    for clock_mhz, limit_mw in ((1200, 250_000), (900, 200_000)):
        controls.set_clock(uuid, clock_mhz)
        controls.set_power(uuid, limit_mw)
        controls.set_power(uuid, 150_000)
        assert controls.restore(uuid)


def killed_at(line: int) -> Callable[[FrameType, str, Any], Any]:
    """A trace function that kills this process before line number ``line`` of the files above."""
    left = line

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal left
        if event == "call" and not frame.f_code.co_filename.endswith(FILES):
            return None
        if event == "line":
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    return trace


def survives(node: EmulatedNode, folder: Path, line: int) -> bool:
    """Whether a process came to the end, instead of being killed before its line number ``line``."""
    child = os.fork()
    if child == 0:
        sys.settrace(killed_at(line))
        try:
            changes(node, folder)
        finally:
            sys.settrace(None)
            os._exit(int(sys.exc_info()[0] is not None))
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL)
    return status == 0


def test_a_kill_at_any_line(tmp_path: Path) -> None:
    found_changed = line = 0
    with emulated_node(tmp_path / "node", "a100-sxm4-80gb:1") as node:
        node.gpus[0].set_power_limit_mw(FOUND[1])
        while not survives(node, tmp_path / "state", line):
            found_changed += state_of(node) != FOUND
            state = StateDirectory(tmp_path / "state", "boot")
            controls = controls_of(node, state)
            assert all(controls.restore(uuid) for uuid in controls.changed()), line
            assert (state_of(node), controls.changed()) == (FOUND, ()), line
            state.close()
            line += EVERY
        assert state_of(node) == FOUND
    assert line > 200 and found_changed * EVERY > 100  # it did kill in the middle of things
