"""Emulated NVML: power, its limits, the energy counter, and field values."""

import time
from typing import Any

import pynvml

from megatron_energy.emulation.gpu import EmulatedGpu
from megatron_energy.emulation.nvml_calls import Refuse, device, number, put, target
from megatron_energy.emulation.state import Fault

# Field ids of nvml.h (pynvml has names for them only since its 12.535).
_ENERGY, _AVERAGE, _INSTANT, _MINIMUM, _MAXIMUM, _DEFAULT, _CURRENT, _ENERGY_SINCE, _REQUESTED = 83, 185, 186, 187, 188, 189, 190, 191, 192


@device("nvmlDeviceGetPowerManagementMode")
def _power_management(_gpu: EmulatedGpu, mode: Any) -> None:
    put(mode, pynvml.NVML_FEATURE_ENABLED)


@device("nvmlDeviceGetPowerUsage")
def _power_usage(gpu: EmulatedGpu, power_mw: Any) -> None:
    put(power_mw, round(gpu.average_power_w() * 1000))


@device("nvmlDeviceGetTotalEnergyConsumption")
def _total_energy(gpu: EmulatedGpu, energy_mj: Any) -> None:
    put(energy_mj, _counter_mj(gpu))


def _counter_mj(gpu: EmulatedGpu) -> int:
    if gpu.node.faults(gpu.index) & Fault.NO_ENERGY_COUNTER:
        raise Refuse(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return gpu.energy_mj()


def limit_mw(gpu: EmulatedGpu) -> int:
    """Power limit in force, in mW."""
    return gpu.node.gpu(gpu.index).power_limit_mw or round(gpu.model.power_limit_default_w * 1000)


@device("nvmlDeviceGetEnforcedPowerLimit")
@device("nvmlDeviceGetPowerManagementLimit")
def _power_limit(gpu: EmulatedGpu, power_mw: Any) -> None:
    put(power_mw, limit_mw(gpu))


@device("nvmlDeviceGetPowerManagementDefaultLimit")
def _default_power_limit(gpu: EmulatedGpu, power_mw: Any) -> None:
    put(power_mw, round(gpu.model.power_limit_default_w * 1000))


@device("nvmlDeviceGetPowerManagementLimitConstraints")
def _power_limit_constraints(gpu: EmulatedGpu, minimum_mw: Any, maximum_mw: Any) -> None:
    put(minimum_mw, round(gpu.model.power_limit_min_w * 1000))
    put(maximum_mw, round(gpu.model.power_limit_max_w * 1000))


@device("nvmlDeviceSetPowerManagementLimit", control=True)
def _set_power_limit(gpu: EmulatedGpu, power_mw: Any) -> None:
    _change_limit(gpu, number(power_mw))


@device("nvmlDeviceSetPowerManagementLimit_v2", control=True)
def _set_power_limit_v2(gpu: EmulatedGpu, reference: Any) -> None:
    request = target(reference)
    if request.powerScope != pynvml.NVML_POWER_SCOPE_GPU:
        raise Refuse(pynvml.NVML_ERROR_NOT_SUPPORTED)
    _change_limit(gpu, int(request.powerValueMw))


def _change_limit(gpu: EmulatedGpu, power_mw: int) -> None:
    if not gpu.model.power_limit_min_w * 1000 <= power_mw <= gpu.model.power_limit_max_w * 1000:
        raise Refuse(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    gpu.set_power_limit_mw(power_mw)


@device("nvmlDeviceGetFieldValues")
def _field_values(gpu: EmulatedGpu, count: Any, reference: Any) -> None:
    values = target(reference)
    for position in range(number(count)):
        value = values[position]
        value.timestamp = int(time.time() * 1e6)
        value.latencyUsec = 0
        value.nvmlReturn = pynvml.NVML_SUCCESS
        try:
            _fill(gpu, value)
        except Refuse as refusal:
            value.nvmlReturn = refusal.code


def _fill(gpu: EmulatedGpu, value: Any) -> None:
    """One field value; energies are 64 bits wide, powers 32."""
    field = value.fieldId
    if value.scopeId != 0:  # another scope than the GPU: the module, the memory
        raise Refuse(pynvml.NVML_ERROR_NOT_SUPPORTED)
    if field in (_ENERGY, _ENERGY_SINCE):
        value.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
        value.value.ullVal = _counter_mj(gpu)
        return
    value.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
    value.value.uiVal = _power_field_mw(gpu, field)


def _power_field_mw(gpu: EmulatedGpu, field: int) -> int:
    if field == _INSTANT:
        if gpu.node.faults(gpu.index) & Fault.NO_INSTANT_POWER:
            raise Refuse(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return round(gpu.instant_power_w() * 1000)
    if field == _AVERAGE:
        return round(gpu.average_power_w() * 1000)
    if field in (_CURRENT, _REQUESTED):
        return limit_mw(gpu)
    bounds_w = {_MINIMUM: gpu.model.power_limit_min_w, _MAXIMUM: gpu.model.power_limit_max_w, _DEFAULT: gpu.model.power_limit_default_w}
    if field not in bounds_w:
        raise Refuse(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return round(bounds_w[field] * 1000)
