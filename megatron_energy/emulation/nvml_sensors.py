"""Emulated NVML: utilisation, memory, temperature, processes, and modes."""

from typing import Any

import pynvml

from megatron_energy.emulation.gpu import EmulatedGpu
from megatron_energy.emulation.nvml_calls import Refuse, device, number, put, target


@device("nvmlDeviceGetUtilizationRates")
def _utilisation(gpu: EmulatedGpu, reference: Any) -> None:
    busy, memory = gpu.utilisation()
    rates = target(reference)
    rates.gpu, rates.memory = round(100 * busy), round(100 * memory)


@device("nvmlDeviceGetMemoryInfo_v2", mig=True)
@device("nvmlDeviceGetMemoryInfo", mig=True)
def _memory(gpu: EmulatedGpu, reference: Any) -> None:
    info, used = target(reference), gpu.node.gpu(gpu.index).memory_used_bytes
    info.total, info.used, info.free = gpu.model.memory_bytes, used, gpu.model.memory_bytes - used
    if hasattr(info, "reserved"):
        info.reserved = 0


@device("nvmlDeviceGetTemperature")
def _temperature(gpu: EmulatedGpu, sensor: Any, celsius: Any) -> None:
    if number(sensor) != pynvml.NVML_TEMPERATURE_GPU:
        raise Refuse(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    put(celsius, round(gpu.temperature_c()))


@device("nvmlDeviceGetTemperatureV")
def _temperature_v(gpu: EmulatedGpu, reference: Any) -> None:
    target(reference).temperature = round(gpu.temperature_c())


@device("nvmlDeviceGetTemperatureThreshold")
def _temperature_threshold(gpu: EmulatedGpu, threshold: Any, celsius: Any) -> None:
    if number(threshold) != pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN:
        raise Refuse(pynvml.NVML_ERROR_NOT_SUPPORTED)
    put(celsius, round(gpu.model.slowdown_c))


@device("nvmlDeviceGetComputeRunningProcesses_v3")
@device("nvmlDeviceGetComputeRunningProcesses_v2")
def _compute_processes(gpu: EmulatedGpu, count: Any, processes: Any) -> None:
    record = gpu.node.gpu(gpu.index)
    room, length = count._obj.value, int(record.owner_pid > 0)
    count._obj.value = length
    if length > room or (length and processes is None):
        raise Refuse(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    if length:
        processes[0].pid, processes[0].usedGpuMemory = record.owner_pid, record.memory_used_bytes
        processes[0].gpuInstanceId = processes[0].computeInstanceId = 0xFFFFFFFF  # not a MIG instance


@device("nvmlDeviceGetMPSComputeRunningProcesses_v3")
@device("nvmlDeviceGetGraphicsRunningProcesses_v3")
@device("nvmlDeviceGetGraphicsRunningProcesses_v2")
def _no_processes(_gpu: EmulatedGpu, count: Any, _processes: Any) -> None:
    put(count, 0)


@device("nvmlDeviceGetPersistenceMode")
def _persistence(gpu: EmulatedGpu, mode: Any) -> None:
    put(mode, gpu.node.gpu(gpu.index).persistence)


@device("nvmlDeviceSetPersistenceMode", control=True)
def _set_persistence(gpu: EmulatedGpu, mode: Any) -> None:
    with gpu.node.edit(gpu.index) as record:
        record.persistence = int(bool(number(mode)))


@device("nvmlDeviceGetVirtualizationMode")
def _virtualization_mode(_gpu: EmulatedGpu, mode: Any) -> None:
    put(mode, pynvml.NVML_GPU_VIRTUALIZATION_MODE_NONE)


@device("nvmlDeviceGetComputeMode")
def _compute_mode(_gpu: EmulatedGpu, mode: Any) -> None:
    put(mode, pynvml.NVML_COMPUTEMODE_DEFAULT)


@device("nvmlDeviceGetDisplayMode")
@device("nvmlDeviceGetDisplayActive")
def _no_display(_gpu: EmulatedGpu, mode: Any) -> None:
    put(mode, pynvml.NVML_FEATURE_DISABLED)


@device("nvmlDeviceGetEccMode")
def _ecc_mode(_gpu: EmulatedGpu, current: Any, pending: Any) -> None:
    put(current, pynvml.NVML_FEATURE_ENABLED)
    put(pending, pynvml.NVML_FEATURE_ENABLED)


@device("nvmlDeviceGetTotalEccErrors")
def _ecc_errors(_gpu: EmulatedGpu, _error: Any, _counter: Any, count: Any) -> None:
    put(count, 0)
