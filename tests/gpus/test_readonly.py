"""The read-only guard, under the real pynvml."""

import inspect

import pynvml
import pytest

from megatron_energy.gpus.errors import NoPermission
from megatron_energy.gpus.nvml import NvmlGpu
from megatron_energy.gpus.preflight import control_permission
from megatron_energy.gpus.readonly import is_reading, read_only
from tests.emulated_gpus import EmulatedNode


def test_nothing_is_changed_and_everything_is_read(emulated: EmulatedNode) -> None:
    gpu = NvmlGpu(emulated.gpus[0].uuid)
    gpu.reset_sm_clocks()  # pynvml has found this function before
    locks_set = emulated.node.gpu(0).locks_set
    with read_only() as guard:
        for change in (lambda: gpu.set_sm_clock_range(210, 900), gpu.reset_sm_clocks, lambda: gpu.set_power_limit_w(200.0)):
            with pytest.raises(NoPermission):
                change()
        assert (gpu.power_w(), gpu.total_energy_mj(), gpu.name) == (60.0, 0, "NVIDIA A100-SXM4-80GB (emulated)")
        assert control_permission().possible is False
        assert guard.refused == ["nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks", "nvmlDeviceSetPowerManagementLimit"]
    assert emulated.node.gpu(0).locks_set == locks_set
    gpu.set_sm_clock_range(210, 900)
    assert emulated.node.gpu(0).locked_max_mhz == 900


def test_every_function_of_pynvml_that_is_let_through_only_reads(emulated: EmulatedNode) -> None:
    """By what pynvml's own functions call: all that set, reset, clear, create, destroy, freeze or register are refused."""
    changing = ("Set", "Reset", "Clear", "Create", "Destroy", "Freeze", "Modify", "Remove", "Discover", "Register", "Free", "Validate")
    names = [name for name, function in vars(pynvml).items() if name.startswith("nvml") and inspect.isfunction(function)]
    let_through = [name for name in names if is_reading(name)]
    assert len(let_through) > 150
    for name in let_through:
        verb = name.removeprefix("nvmlDevice").removeprefix("nvmlSystem").removeprefix("nvml")
        assert not verb.startswith(changing), name
    for name in names:
        if name.startswith(("nvmlDeviceSet", "nvmlDeviceReset", "nvmlDeviceClear", "nvmlSystemSet", "nvmlGpuInstance")):
            assert not is_reading(name), name


def test_the_guard_ends_with_its_block(emulated: EmulatedNode) -> None:
    library = pynvml.nvmlLib
    with pytest.raises(RuntimeError), read_only():
        assert pynvml.nvmlLib is not library
        raise RuntimeError
    assert pynvml.nvmlLib is library
