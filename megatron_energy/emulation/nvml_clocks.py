"""Emulated NVML: clocks and why they are what they are.

As in reality there is no getter for a locked range; application clocks are deprecated and not supported.
"""

from typing import Any

import pynvml

from megatron_energy.emulation.gpu import EmulatedGpu
from megatron_energy.emulation.nvml_calls import Refuse, device, number, put, put_list
from megatron_energy.gpus.device import EventReason

_SM_CLOCKS = (pynvml.NVML_CLOCK_GRAPHICS, pynvml.NVML_CLOCK_SM)  # one domain on the GPUs emulated here


@device("nvmlDeviceGetSupportedMemoryClocks")
def _supported_memory_clocks(gpu: EmulatedGpu, count: Any, clocks_mhz: Any) -> None:
    put_list(count, clocks_mhz, gpu.model.memory_clocks_mhz)


@device("nvmlDeviceGetSupportedGraphicsClocks")
def _supported_graphics_clocks(gpu: EmulatedGpu, memory_mhz: Any, count: Any, clocks_mhz: Any) -> None:
    if number(memory_mhz) not in gpu.model.memory_clocks_mhz:
        raise Refuse(pynvml.NVML_ERROR_NOT_FOUND)
    put_list(count, clocks_mhz, gpu.model.sm_clocks_mhz)


@device("nvmlDeviceGetClockInfo")
def _clock(gpu: EmulatedGpu, kind: Any, clock_mhz: Any) -> None:
    if number(kind) in _SM_CLOCKS:
        put(clock_mhz, gpu.clock_mhz())
    elif number(kind) == pynvml.NVML_CLOCK_MEM:
        put(clock_mhz, gpu.model.memory_clocks_mhz[0])
    else:
        raise Refuse(pynvml.NVML_ERROR_NOT_SUPPORTED)


@device("nvmlDeviceGetMaxClockInfo")
def _max_clock(gpu: EmulatedGpu, kind: Any, clock_mhz: Any) -> None:
    if number(kind) in _SM_CLOCKS:
        put(clock_mhz, gpu.model.sm_clock_max_mhz)
    elif number(kind) == pynvml.NVML_CLOCK_MEM:
        put(clock_mhz, gpu.model.memory_clocks_mhz[0])
    else:
        raise Refuse(pynvml.NVML_ERROR_NOT_SUPPORTED)


@device("nvmlDeviceGetClock")
def _clock_by_id(gpu: EmulatedGpu, kind: Any, which: Any, clock_mhz: Any) -> None:
    if number(which) == pynvml.NVML_CLOCK_ID_CURRENT:
        _clock(gpu, kind, clock_mhz)
    elif number(which) == pynvml.NVML_CLOCK_ID_CUSTOMER_BOOST_MAX:
        _max_clock(gpu, kind, clock_mhz)
    else:
        raise Refuse(pynvml.NVML_ERROR_NOT_SUPPORTED)


@device("nvmlDeviceGetMaxCustomerBoostClock")
def _max_boost_clock(gpu: EmulatedGpu, kind: Any, clock_mhz: Any) -> None:
    _max_clock(gpu, kind, clock_mhz)


@device("nvmlDeviceSetGpuLockedClocks", control=True)
def _lock_clocks(gpu: EmulatedGpu, minimum: Any, maximum: Any) -> None:
    low_mhz, high_mhz = number(minimum), number(maximum)
    if low_mhz > high_mhz or high_mhz < gpu.model.sm_clocks_mhz[-1] or low_mhz > gpu.model.sm_clock_max_mhz:
        raise Refuse(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    gpu.lock_clocks(low_mhz, high_mhz)


@device("nvmlDeviceResetGpuLockedClocks", control=True)
def _reset_clocks(gpu: EmulatedGpu) -> None:
    gpu.reset_clocks()


@device("nvmlDeviceGetCurrentClocksThrottleReasons")
@device("nvmlDeviceGetCurrentClocksEventReasons")
def _event_reasons(gpu: EmulatedGpu, reasons: Any) -> None:
    put(reasons, int(gpu.reasons()))


@device("nvmlDeviceGetSupportedClocksThrottleReasons")
@device("nvmlDeviceGetSupportedClocksEventReasons")
def _supported_reasons(_gpu: EmulatedGpu, reasons: Any) -> None:
    put(reasons, int(EventReason.IDLE | EventReason.LOCKED_CLOCKS | EventReason.POWER_CAP))


@device("nvmlDeviceGetPowerState")
@device("nvmlDeviceGetPerformanceState")
def _performance_state(_gpu: EmulatedGpu, state: Any) -> None:
    put(state, pynvml.NVML_PSTATE_0)
