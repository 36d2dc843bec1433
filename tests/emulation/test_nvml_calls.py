"""The real pynvml against the emulated library: values, error codes as pynvml's own exceptions."""

import ctypes
import subprocess
import sys
import time
from pathlib import Path

import pynvml
import pytest

from megatron_energy.emulation.state import Fault
from tests.emulated_gpus import EmulatedNode


def handle(index: int = 0) -> object:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def test_versions_say_that_they_are_emulated(emulated: EmulatedNode) -> None:
    assert pynvml.nvmlSystemGetDriverVersion() == "570.00.emulated"
    assert "emulated" in pynvml.nvmlSystemGetNVMLVersion()
    assert pynvml.nvmlSystemGetCudaDriverVersion() == 12080
    assert pynvml.nvmlUnitGetCount() == 0


def test_every_way_to_a_handle_leads_to_the_same_gpu(emulated: EmulatedNode) -> None:
    assert pynvml.nvmlDeviceGetCount() == 4
    for index in range(4):
        uuid = pynvml.nvmlDeviceGetUUID(handle(index))
        bus_id = pynvml.nvmlDeviceGetPciInfo(handle(index)).busId
        ways = [
            pynvml.nvmlDeviceGetHandleByUUID(uuid),
            pynvml.nvmlDeviceGetHandleByPciBusId(bus_id),
            pynvml.nvmlDeviceGetHandleByPciBusId(bus_id[4:].lower()),  # the short form: 0000:07:00.0
            pynvml.nvmlDeviceGetHandleBySerial(pynvml.nvmlDeviceGetSerial(handle(index)).encode()),
        ]
        assert [pynvml.nvmlDeviceGetIndex(way) for way in ways] == [index] * 4
        assert pynvml.nvmlDeviceGetMinorNumber(handle(index)) == index
    assert len({pynvml.nvmlDeviceGetPciInfo(handle(index)).bus for index in range(4)}) == 4


def test_identity(emulated: EmulatedNode) -> None:
    assert pynvml.nvmlDeviceGetName(handle()) == "NVIDIA A100-SXM4-80GB (emulated)"
    assert pynvml.nvmlDeviceGetArchitecture(handle()) == pynvml.NVML_DEVICE_ARCH_AMPERE
    assert pynvml.nvmlDeviceGetCudaComputeCapability(handle()) == (8, 0)
    assert pynvml.nvmlDeviceGetPciInfo(handle()).pciDeviceId & 0xFFFF == 0x10DE  # NVIDIA


@pytest.mark.parametrize(
    ("request_it", "error"),
    [
        (lambda: handle(4), pynvml.NVMLError_InvalidArgument),
        (lambda: pynvml.nvmlDeviceGetHandleByUUID("GPU-nobody"), pynvml.NVMLError_NotFound),
        (lambda: pynvml.nvmlDeviceGetHandleByPciBusId("0000:FF:00.0"), pynvml.NVMLError_NotFound),
        (lambda: pynvml.nvmlDeviceGetHandleBySerial(b"1"), pynvml.NVMLError_NotFound),
        (lambda: pynvml.nvmlDeviceGetPowerUsage(None), pynvml.NVMLError_InvalidArgument),
        (lambda: pynvml.nvmlDeviceGetSupportedGraphicsClocks(handle(), 1), pynvml.NVMLError_NotFound),
        (lambda: pynvml.nvmlDeviceSetGpuLockedClocks(handle(), 1410, 210), pynvml.NVMLError_InvalidArgument),
        (lambda: pynvml.nvmlDeviceSetGpuLockedClocks(handle(), 5000, 6000), pynvml.NVMLError_InvalidArgument),
        (lambda: pynvml.nvmlDeviceSetPowerManagementLimit(handle(), 99_000), pynvml.NVMLError_InvalidArgument),
        (lambda: pynvml.nvmlDeviceGetApplicationsClock(handle(), 1), pynvml.NVMLError_NotSupported),
        (lambda: pynvml.nvmlDeviceSetApplicationsClocks(handle(), 1593, 1410), pynvml.NVMLError_NotSupported),
        (lambda: pynvml.nvmlDeviceSetMemoryLockedClocks(handle(), 1593, 1593), pynvml.NVMLError_NotSupported),
        (lambda: pynvml.nvmlDeviceGetFanSpeed(handle()), pynvml.NVMLError_NotSupported),
        (lambda: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle(), 0), pynvml.NVMLError_NotFound),
        (lambda: pynvml.nvmlVgpuTypeGetMaxInstances(handle(), 0), pynvml.NVMLError_FunctionNotFound),
    ],
)
def test_errors_are_pynvmls_own(emulated: EmulatedNode, request_it: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        request_it()  # type: ignore[operator]


def test_control_without_permission(emulated: EmulatedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGATRON_ENERGY_EMULATED_CONTROL", "no")
    for call in (
        lambda: pynvml.nvmlDeviceSetGpuLockedClocks(handle(), 210, 1080),
        lambda: pynvml.nvmlDeviceResetGpuLockedClocks(handle()),
        lambda: pynvml.nvmlDeviceSetPowerManagementLimit(handle(), 300_000),
        lambda: pynvml.nvmlDeviceSetPersistenceMode(handle(), 0),
    ):
        with pytest.raises(pynvml.NVMLError_NoPermission, match="Insufficient Permissions"):
            call()
    assert emulated.node.gpu(0).locks_set == 0


def test_after_shutdown_nothing_answers(emulated: EmulatedNode) -> None:
    gpu = handle()
    pynvml.nvmlInit()
    pynvml.nvmlShutdown()
    assert pynvml.nvmlDeviceGetPowerUsage(gpu) > 0
    pynvml.nvmlShutdown()
    for call in (pynvml.nvmlDeviceGetPowerUsage, pynvml.nvmlDeviceGetFanSpeed):
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            call(gpu)
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetPowerUsage(gpu) > 0


def test_a_lost_gpu(emulated: EmulatedNode) -> None:
    with emulated.node.edit(0) as record:
        record.faults = Fault.LOST
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle())


def test_lists_follow_nvmls_protocol(emulated: EmulatedNode) -> None:
    clocks = pynvml.nvmlDeviceGetSupportedGraphicsClocks(handle(), pynvml.nvmlDeviceGetSupportedMemoryClocks(handle())[0])
    assert clocks == list(range(1410, 209, -15))
    count, array = ctypes.c_uint(80), (ctypes.c_uint * 80)()
    code = pynvml.nvmlLib.nvmlDeviceGetSupportedGraphicsClocks(handle(), ctypes.c_uint(1593), ctypes.byref(count), array)
    assert (code, count.value) == (pynvml.NVML_ERROR_INSUFFICIENT_SIZE, 81)


def test_field_values(emulated: EmulatedNode) -> None:
    emulated.clock.now_s += 1.0
    fields = [186, 185, 187, 188, 189, 190, 83, (186, 1), 4]
    values = pynvml.nvmlDeviceGetFieldValues(handle(), fields)
    assert [value.value.uiVal for value in values[:6]] == [60_000, 60_000, 100_000, 400_000, 400_000, 400_000]
    assert values[6].value.ullVal == pytest.approx(60_000, abs=1)
    assert values[6].valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
    assert [value.nvmlReturn for value in values] == [0] * 7 + [pynvml.NVML_ERROR_NOT_SUPPORTED] * 2


def test_clocks(emulated: EmulatedNode) -> None:
    emulated.gpus[0].set_load(0.5)
    for kind, expected_mhz in ((pynvml.NVML_CLOCK_SM, 1410), (pynvml.NVML_CLOCK_GRAPHICS, 1410), (pynvml.NVML_CLOCK_MEM, 1593)):
        assert pynvml.nvmlDeviceGetClockInfo(handle(), kind) == expected_mhz
        assert pynvml.nvmlDeviceGetMaxClockInfo(handle(), kind) == expected_mhz
        assert pynvml.nvmlDeviceGetClock(handle(), kind, pynvml.NVML_CLOCK_ID_CURRENT) == expected_mhz
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetClockInfo(handle(), pynvml.NVML_CLOCK_VIDEO)


def test_clock_requests_are_rounded_down_to_supported_clocks(emulated: EmulatedNode) -> None:
    pynvml.nvmlDeviceSetGpuLockedClocks(handle(), 0, 1084)
    record = emulated.node.gpu(0)
    assert (record.locked_min_mhz, record.locked_max_mhz) == (210, 1080)


def test_the_power_limit_in_both_versions_of_the_call(emulated: EmulatedNode) -> None:
    pynvml.nvmlDeviceSetPowerManagementLimit(handle(), 300_000)
    assert pynvml.nvmlDeviceGetPowerManagementLimit(handle()) == pynvml.nvmlDeviceGetEnforcedPowerLimit(handle()) == 300_000
    pynvml.nvmlDeviceSetPowerManagementLimit_v2(handle(), pynvml.NVML_POWER_SCOPE_GPU, 350_000)
    assert pynvml.nvmlDeviceGetPowerManagementLimit(handle()) == 350_000
    assert pynvml.nvmlDeviceGetPowerManagementDefaultLimit(handle()) == 400_000
    assert pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle()) == [100_000, 400_000]


def test_memory_utilisation_temperature_and_modes(emulated: EmulatedNode) -> None:
    emulated.gpus[0].set_load(0.6, 0.2)
    with emulated.node.edit(0) as record:
        record.memory_used_bytes = 1 << 30
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle())
    assert (rates.gpu, rates.memory) == (60, 20)
    for memory in (pynvml.nvmlDeviceGetMemoryInfo(handle()), pynvml.nvmlDeviceGetMemoryInfo(handle(), pynvml.nvmlMemory_v2)):
        assert (memory.total, memory.used, memory.free) == (85899345920, 1 << 30, 85899345920 - (1 << 30))
    expected_c = round(emulated.gpus[0].model.ambient_c + emulated.gpus[0].model.celsius_per_w * emulated.gpus[0].power_w())
    assert pynvml.nvmlDeviceGetTemperature(handle(), pynvml.NVML_TEMPERATURE_GPU) == expected_c
    assert pynvml.nvmlDeviceGetPersistenceMode(handle()) == 1
    pynvml.nvmlDeviceSetPersistenceMode(handle(), 0)
    assert pynvml.nvmlDeviceGetPersistenceMode(handle()) == 0
    assert pynvml.nvmlDeviceGetMigMode(handle()) == [0, 0]
    assert pynvml.nvmlDeviceGetEccMode(handle()) == [1, 1]
    assert pynvml.nvmlDeviceGetPerformanceState(handle()) == 0


def test_event_reasons_under_both_names(emulated: EmulatedNode) -> None:
    assert pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle()) == pynvml.nvmlClocksEventReasonGpuIdle
    assert pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle()) == pynvml.nvmlClocksThrottleReasonGpuIdle
    assert pynvml.nvmlDeviceGetSupportedClocksEventReasons(handle()) & pynvml.nvmlClocksEventReasonSwPowerCap


def test_processes(emulated: EmulatedNode) -> None:
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(handle()) == []
    emulated.gpus[0].set_load(0.5, owner_pid=4711)
    assert [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle())] == [4711]
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(handle(1)) == []
    assert pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle()) == []


def test_mig_instances(emulated: EmulatedNode) -> None:
    with emulated.node.edit(3) as record:
        record.mig_instances = 2
    assert pynvml.nvmlDeviceGetMigMode(handle(3)) == [1, 1]
    instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle(3), 1)
    uuid = pynvml.nvmlDeviceGetUUID(instance)
    assert uuid.startswith("MIG-")
    again = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(again)) == 3
    assert pynvml.nvmlDeviceIsMigDeviceHandle(again).value == 1
    assert pynvml.nvmlDeviceIsMigDeviceHandle(handle(3)).value == 0
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetTotalEnergyConsumption(again)


def test_every_getter_of_pynvml_answers_or_raises_pynvmls_error(emulated: EmulatedNode) -> None:
    answered = 0
    for name in dir(pynvml):
        if name.startswith("nvmlDeviceGet"):
            try:
                getattr(pynvml, name)(handle())
                answered += 1
            except (pynvml.NVMLError, TypeError):  # TypeError: pynvml's function wants more arguments
                continue
    assert answered >= 35


def test_unknown_codes_have_a_text(emulated: EmulatedNode) -> None:
    assert "77" in str(pynvml.NVMLError(77))


READER = """
import sys
from pathlib import Path
import pynvml
from megatron_energy.emulation.install import install
install("a100-sxm4-80gb:4", Path(sys.argv[1]))
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(2)
print(pynvml.nvmlDeviceGetUUID(gpu), pynvml.nvmlDeviceGetPowerManagementLimit(gpu))
pynvml.nvmlDeviceSetPowerManagementLimit(gpu, 222000)
"""


def test_another_process_sees_and_changes_the_same_gpus(emulated: EmulatedNode) -> None:
    pynvml.nvmlDeviceSetPowerManagementLimit(handle(2), 333_000)
    emulated.clock.now_s = time.monotonic()  # the other process reads the real clock
    command = [sys.executable, "-c", READER, str(emulated.node.path.parent)]
    other = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=True)
    assert other.stdout.split() == [emulated.gpus[2].uuid, "333000"]
    assert pynvml.nvmlDeviceGetPowerManagementLimit(handle(2)) == 222_000
