import os

import pynvml
import pytest

from megatron_energy.emulation.state import Fault
from megatron_energy.gpus import library
from megatron_energy.gpus.device import EventReason, Gpu, request_sm_clock
from megatron_energy.gpus.errors import GpuError, GpuLost, NoDriver, NoPermission, NotSupported
from megatron_energy.gpus.nvml import NvmlGpu
from tests.emulated_gpus import EmulatedNode


@pytest.fixture
def gpu(emulated: EmulatedNode) -> NvmlGpu:
    return NvmlGpu(emulated.gpus[2].uuid)


def test_it_is_a_gpu(gpu: NvmlGpu) -> None:
    assert isinstance(gpu, Gpu)
    assert (gpu.index, gpu.name, gpu.energy_scope) == (2, "NVIDIA A100-SXM4-80GB (emulated)", "gpu")
    assert library.is_emulated()


def test_clocks_and_limits(gpu: NvmlGpu) -> None:
    clocks = gpu.supported_sm_clocks_mhz()
    assert (clocks[0], clocks[-1], len(clocks)) == (1410, 210, 81)
    assert gpu.supported_memory_clocks_mhz() == (1593,)
    limits = gpu.power_limits()
    assert (limits.current_w, limits.default_w, limits.minimum_w, limits.maximum_w) == (400.0, 400.0, 100.0, 400.0)


def test_a_lowered_power_limit_is_the_current_one(gpu: NvmlGpu) -> None:
    gpu.set_power_limit_w(250.5)
    assert gpu.power_limits().current_w == 250.5
    with pytest.raises(GpuError, match="Invalid Argument"):
        gpu.set_power_limit_w(401.0)


def test_a_requested_clock_comes_into_force_after_its_latency(gpu: NvmlGpu, emulated: EmulatedNode) -> None:
    emulated.gpus[2].set_load(0.5)
    assert gpu.sm_clock_mhz() == 1410
    request_sm_clock(gpu, 1080)
    assert gpu.sm_clock_mhz() == 1410
    emulated.clock.now_s += emulated.gpus[2].model.in_force_s
    assert gpu.sm_clock_mhz() == 1080
    assert gpu.event_reasons() == EventReason.LOCKED_CLOCKS
    gpu.reset_sm_clocks()
    emulated.clock.now_s += 1.0
    assert gpu.sm_clock_mhz() == 1410


def test_an_idle_gpu_falls_although_a_clock_was_requested(gpu: NvmlGpu, emulated: EmulatedNode) -> None:
    request_sm_clock(gpu, 1080)
    emulated.clock.now_s += 1.0
    assert gpu.sm_clock_mhz() == 210
    gpu.set_sm_clock_range(1080, 1080)
    emulated.clock.now_s += 1.0
    assert gpu.sm_clock_mhz() == 1080


def test_power_is_the_instant_field_or_says_that_it_is_not(gpu: NvmlGpu, emulated: EmulatedNode) -> None:
    assert gpu.power_w() == emulated.gpus[2].model.idle_power_w
    assert gpu.power_source.startswith("instant power")
    with emulated.node.edit(2) as record:
        record.faults = Fault.NO_INSTANT_POWER
    other = NvmlGpu(gpu.uuid)
    assert "lagging average" in other.power_source
    assert other.power_w() == pytest.approx(emulated.gpus[2].average_power_w())


def test_a_missing_counter_is_none(gpu: NvmlGpu, emulated: EmulatedNode) -> None:
    assert gpu.total_energy_mj() == 0
    with emulated.node.edit(2) as record:
        record.faults = Fault.NO_ENERGY_COUNTER
    assert gpu.total_energy_mj() is None


def test_a_lost_gpu_says_so(gpu: NvmlGpu, emulated: EmulatedNode) -> None:
    with emulated.node.edit(2) as record:
        record.faults = Fault.LOST
    with pytest.raises(GpuLost, match="needs a reset"):
        gpu.power_w()
    assert NvmlGpu(emulated.gpus[1].uuid).power_w() > 0


def test_control_needs_permission_and_reading_does_not(gpu: NvmlGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGATRON_ENERGY_EMULATED_CONTROL", "no")
    for refused in (lambda: request_sm_clock(gpu, 1080), gpu.reset_sm_clocks, lambda: gpu.set_power_limit_w(300.0)):
        with pytest.raises(NoPermission, match="clock daemon"):
            refused()
    assert gpu.power_w() > 0


def test_clocks_of_a_split_gpu_are_left_alone(gpu: NvmlGpu, emulated: EmulatedNode) -> None:
    with emulated.node.edit(2) as record:
        record.mig_instances = 3
    with pytest.raises(NotSupported, match="split by MIG"):
        request_sm_clock(gpu, 1080)
    assert emulated.node.gpu(2).locks_set == 0


def test_an_unknown_uuid_fails_at_once(emulated: EmulatedNode) -> None:
    with pytest.raises(GpuError, match="Not Found"):
        NvmlGpu("GPU-nobody")


def test_older_drivers_have_throttle_reasons_instead(gpu: NvmlGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_handle: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", missing)
    assert gpu.event_reasons() == EventReason.IDLE


def test_other_users_of_nvml_may_shut_it_down(gpu: NvmlGpu) -> None:
    gpu.power_w()
    pynvml.nvmlInit()
    pynvml.nvmlShutdown()
    assert gpu.power_w() > 0


def test_a_forked_child_initialises_again(gpu: NvmlGpu, emulated: EmulatedNode) -> None:
    gpu.power_w()
    before = pynvml.nvmlLib.references
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        answer = b"failed"
        try:
            gpu.power_w()
            answer = b"%d" % (pynvml.nvmlLib.references - before)
        finally:
            os.write(writing, answer)
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 100) == b"1"
    os.close(reading)
    os.close(writing)
    gpu.power_w()
    assert pynvml.nvmlLib.references == before


def test_without_a_driver_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", no_library)
    monkeypatch.setattr(library, "_initialised", None)
    with pytest.raises(NoDriver, match="no NVIDIA driver here: use --energy-device emulated or run on a GPU host"):
        library.open_nvml()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (pynvml.NVML_ERROR_NO_PERMISSION, NoPermission),
        (pynvml.NVML_ERROR_NOT_SUPPORTED, NotSupported),
        (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, NotSupported),
        (pynvml.NVML_ERROR_GPU_IS_LOST, GpuLost),
        (pynvml.NVML_ERROR_RESET_REQUIRED, GpuLost),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, NoDriver),
        (pynvml.NVML_ERROR_UNKNOWN, GpuError),
    ],
)
def test_every_nvml_error_becomes_one_of_ours(code: int, kind: type[Exception]) -> None:
    def failing() -> None:
        raise pynvml.NVMLError(code)

    with pytest.raises(kind) as caught:
        library.call(failing)
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)
