"""Emulated GPUs in wall time and in virtual time: energies that can be worked out by hand."""

from pathlib import Path

import pynvml
import pytest

from megatron_energy.emulation.physics import power_w
from megatron_energy.emulation.state import Fault, GpuRecord
from megatron_energy.gpus.device import EventReason
from tests.emulated_gpus import EmulatedNode, emulated_node


def counter_mj(index: int = 0) -> int:
    return int(pynvml.nvmlDeviceGetTotalEnergyConsumption(pynvml.nvmlDeviceGetHandleByIndex(index)))


def test_an_idle_gpu_uses_idle_power(emulated: EmulatedNode) -> None:
    emulated.clock.now_s += 50.0  # GPU 0's counter steps at whole tenths of a second
    assert counter_mj() == pytest.approx(50 * 60_000, abs=1)  # 60 W: the catalog's idle power


def test_the_counter_steps(emulated: EmulatedNode) -> None:
    emulated.clock.now_s += 0.0999
    assert counter_mj() == 0
    emulated.clock.now_s += 0.0002
    assert counter_mj() == pytest.approx(6_000, abs=1)
    emulated.clock.now_s += 0.0998
    assert counter_mj() == pytest.approx(6_000, abs=1)


def test_energy_of_a_load_that_changes(emulated: EmulatedNode) -> None:
    gpu = emulated.gpus[0]
    gpu.set_load(0.5)
    emulated.clock.now_s += 2.0
    gpu.set_load(0.0)
    emulated.clock.now_s += 3.0
    expected_j = 2.0 * power_w(gpu.model, 1410, compute=0.5) + 3.0 * 60
    assert counter_mj() == pytest.approx(1000 * expected_j, abs=1)


def test_a_change_between_two_steps_shows_at_the_next_one(emulated: EmulatedNode) -> None:
    gpu = emulated.gpus[0]
    emulated.clock.now_s += 0.15
    gpu.set_load(0.5)
    assert counter_mj() == pytest.approx(6_000, abs=1)
    emulated.clock.now_s += 0.06
    expected_j = 0.15 * 60 + 0.05 * power_w(gpu.model, 1410, compute=0.5)
    assert counter_mj() == pytest.approx(1000 * expected_j, abs=1)


def test_energy_of_a_lower_clock_counts_from_when_it_is_in_force(emulated: EmulatedNode) -> None:
    gpu = emulated.gpus[0]
    gpu.set_load(0.5)
    pynvml.nvmlDeviceSetGpuLockedClocks(pynvml.nvmlDeviceGetHandleByIndex(0), 210, 1080)
    at_maximum_s = gpu.model.request_lock_s + gpu.model.in_force_s
    emulated.clock.now_s = 1010.0
    expected_j = at_maximum_s * power_w(gpu.model, 1410, compute=0.5) + (10 - at_maximum_s) * power_w(gpu.model, 1080, compute=0.5)
    assert counter_mj() == pytest.approx(1000 * expected_j, abs=1)


def test_reading_changes_nothing(emulated: EmulatedNode) -> None:
    emulated.gpus[0].set_load(0.7, 0.3)
    stored = emulated.node.gpu(0)
    emulated.clock.now_s += 1.234
    readings = [(counter_mj(), emulated.gpus[0].power_w(), emulated.gpus[0].clock_mhz()) for _ in range(3)]
    assert readings[0] == readings[1] == readings[2]
    assert emulated.node.gpu(0) == stored


def test_the_power_limit_holds_the_clock_down(emulated: EmulatedNode) -> None:
    gpu = emulated.gpus[0]
    gpu.set_load(1.0)
    clock_mhz = gpu.clock_mhz()
    assert clock_mhz < 1410
    assert power_w(gpu.model, clock_mhz) <= 400 < power_w(gpu.model, clock_mhz + 15)
    assert gpu.reasons() == EventReason.POWER_CAP
    gpu.set_power_limit_mw(200_000)
    assert power_w(gpu.model, gpu.clock_mhz()) <= 200 < power_w(gpu.model, gpu.clock_mhz() + 15)


def test_a_lock_below_the_cap_is_no_throttling(emulated: EmulatedNode) -> None:
    gpu = emulated.gpus[0]
    gpu.set_load(1.0)
    gpu.lock_clocks(210, 900)
    emulated.clock.now_s += 1.0
    assert (gpu.clock_mhz(), gpu.reasons()) == (900, EventReason.LOCKED_CLOCKS)


def test_requests_of_a_node_take_the_drivers_time_one_after_another(emulated: EmulatedNode) -> None:
    before_s = emulated.clock.now_s
    for index in range(4):
        emulated.gpus[index].lock_clocks(210, 1080)
    assert emulated.clock.now_s - before_s == pytest.approx(4 * 0.00575)  # 46 ms for the 8 GPUs of a node


def test_a_gpu_may_ignore_locks_and_yet_answer_success(emulated: EmulatedNode) -> None:
    with emulated.node.edit(0) as record:
        record.faults = Fault.IGNORES_LOCKS
    emulated.gpus[0].set_load(0.5)
    pynvml.nvmlDeviceSetGpuLockedClocks(pynvml.nvmlDeviceGetHandleByIndex(0), 210, 900)
    emulated.clock.now_s += 1.0
    assert emulated.gpus[0].clock_mhz() == 1410


def test_the_average_lags(tmp_path: Path) -> None:
    with emulated_node(tmp_path, "h100-sxm5-80gb:1") as h100:
        gpu = h100.gpus[0]
        h100.clock.now_s += 10.0
        idle_w = gpu.power_w()
        assert gpu.average_power_w() == pytest.approx(idle_w)
        gpu.set_load(0.5)
        busy_w = gpu.power_w()
        assert gpu.average_power_w() == pytest.approx(idle_w)
        h100.clock.now_s += 0.25  # a quarter of the 1 s window, of which the sensor has shown 0.2 s
        assert gpu.average_power_w() == pytest.approx(idle_w + 0.2 * (busy_w - idle_w))
        h100.clock.now_s += 1.0
        assert gpu.average_power_w() == pytest.approx(busy_w)


def test_instant_power_is_renewed_ten_times_a_second_from_a_short_window(tmp_path: Path) -> None:
    with emulated_node(tmp_path, "h100-sxm5-80gb:1") as h100:  # windows of 25 ms, renewed every 100 ms
        gpu = h100.gpus[0]
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)

        def shown_w() -> float:
            return float(pynvml.nvmlDeviceGetFieldValues(handle, [186])[0].value.uiVal) / 1000

        h100.clock.now_s = 1010.09
        idle_w = gpu.power_w()
        gpu.set_load(0.5)
        busy_w = gpu.power_w()
        assert shown_w() == pytest.approx(idle_w, abs=1e-3)
        h100.clock.now_s = 1010.101  # renewed at 1010.1, when 10 of the window's 25 ms were busy
        assert shown_w() == pytest.approx(idle_w + 0.4 * (busy_w - idle_w), abs=1e-3)
        gpu.set_load(0.0)
        h100.clock.now_s = 1010.199  # all of it missed by the sensor until the next renewal
        assert shown_w() == pytest.approx(idle_w + 0.4 * (busy_w - idle_w), abs=1e-3)
        h100.clock.now_s = 1010.201
        assert shown_w() == pytest.approx(idle_w, abs=1e-3)


def test_a_reboot_costs_no_energy(emulated: EmulatedNode) -> None:
    emulated.clock.now_s += 10.0
    emulated.gpus[0].set_load(0.5)
    before_mj = counter_mj()
    emulated.clock.now_s = 5.0  # the monotonic clock began anew
    assert counter_mj() == before_mj
    emulated.clock.now_s = 6.0
    assert counter_mj() - before_mj == pytest.approx(0, abs=1)  # stored values stay until something changes ...
    emulated.gpus[0].set_load(0.5)
    emulated.clock.now_s = 7.0
    assert counter_mj() - before_mj == pytest.approx(1000 * power_w(emulated.gpus[0].model, 1410, compute=0.5), abs=1)  # ... and then go on


def test_loads_are_shares(emulated: EmulatedNode) -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        emulated.gpus[0].set_load(1.5)


def test_virtual_time_shows_what_was_settled(tmp_path: Path) -> None:
    with emulated_node(tmp_path, "a100-sxm4-80gb:2", time_source="virtual") as virtual:
        gpu = pynvml.nvmlDeviceGetHandleByIndex(1)
        assert (counter_mj(1), pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM)) == (0, 210)
        virtual.node.advance(1, now_s=2.0, energy_mj=700_000, clock_mhz=1080, power_w=350.0, utilisation=0.9, reasons=4)
        virtual.clock.now_s += 100.0
        assert counter_mj(1) == 700_000
        assert counter_mj(0) == 0
        assert pynvml.nvmlDeviceGetPowerUsage(gpu) == 350_000
        assert pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM) == 1080
        assert pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu == 90
        assert pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu) == pynvml.nvmlClocksEventReasonSwPowerCap


def test_locks_in_virtual_time_are_recorded_and_take_no_time(tmp_path: Path) -> None:
    with emulated_node(tmp_path, "a100-sxm4-80gb:1", time_source="virtual", initial=GpuRecord(clock_mhz=1410)) as virtual:
        pynvml.nvmlDeviceSetGpuLockedClocks(pynvml.nvmlDeviceGetHandleByIndex(0), 210, 1080)
        record = virtual.node.gpu(0)
        assert (record.locked_min_mhz, record.locked_max_mhz, record.locks_set) == (210, 1080, 1)
        assert virtual.gpus[0].clock_mhz() == 1410  # until it is settled
        assert virtual.clock.now_s == 1000.0
