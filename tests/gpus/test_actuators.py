import pytest

from megatron_energy.gpus.actuators import DryRunActuator, NvmlActuator
from megatron_energy.gpus.errors import GpuError, NoPermission
from megatron_energy.gpus.nvml import NvmlGpu
from tests.emulated_gpus import EmulatedNode


def test_the_driver_is_asked_for_a_range_and_gives_it_up(emulated: EmulatedNode) -> None:
    actuator = NvmlActuator(NvmlGpu(emulated.gpus[1].uuid))
    actuator.set_max_clock(1080)
    record = emulated.node.gpu(1)
    assert (record.locked_min_mhz, record.locked_max_mhz) == (210, 1080)
    actuator.release()
    record = emulated.node.gpu(1)
    assert (record.locked_min_mhz, record.locked_max_mhz) == (0, 0)


def test_a_clock_that_is_not_supported_is_a_gpu_error(emulated: EmulatedNode) -> None:
    actuator = NvmlActuator(NvmlGpu(emulated.gpus[1].uuid))
    with pytest.raises(GpuError, match="no SM clock of 1081 MHz; the nearest is 1080 MHz"):
        actuator.set_max_clock(1081)
    assert emulated.node.gpu(1).locks_set == 0


def test_refusals_come_through(emulated: EmulatedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    actuator = NvmlActuator(NvmlGpu(emulated.gpus[1].uuid))
    monkeypatch.setenv("MEGATRON_ENERGY_EMULATED_CONTROL", "no")
    for call in (lambda: actuator.set_max_clock(1080), actuator.release):
        with pytest.raises(NoPermission):
            call()


def test_a_dry_run_asks_for_nothing() -> None:
    actuator = DryRunActuator()
    actuator.set_max_clock(1080)
    assert actuator.asked_mhz == 1080
    actuator.release()
    assert actuator.asked_mhz == 0
