"""Which GPUs this process sees, and in CUDA's order.

NVML ignores ``CUDA_VISIBLE_DEVICES`` and counts in bus order; CUDA obeys the variable. So CUDA device 0 may be NVML's
GPU 5. Here the variable is read by CUDA's rules (CUDA Programming Guide, "Environment Variables"): indices, UUIDs or
unambiguous beginnings of UUIDs, and MIG instances; the list ends before the first entry that names no device. Where CUDA's
numbers cannot be told for certain, they are refused rather than guessed: another job's GPU might be meant.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pynvml

from megatron_energy.errors import UserError
from megatron_energy.gpus.errors import GpuError, NoDriver, NotFound, NotSupported
from megatron_energy.gpus.library import call, open_nvml
from megatron_energy.gpus.nvml import NvmlGpu

VARIABLE = "CUDA_VISIBLE_DEVICES"
ORDER_VARIABLE = "CUDA_DEVICE_ORDER"


@dataclass(frozen=True, slots=True)
class VisibleDevice:
    """One CUDA device: the GPU it lies on and, where the GPU is split, its MIG instance."""

    gpu_uuid: str
    mig_instance: str | None = None


def parse_visible_devices(
    value: str | None, gpu_uuids: Sequence[str], mig_instances: Mapping[str, str] | None = None
) -> list[VisibleDevice]:
    """CUDA's devices, in CUDA's order.

    Args:
        value: the variable's value; None when it is not set (then every GPU is visible).
        gpu_uuids: the host's GPUs in bus order.
        mig_instances: UUID of each MIG instance -> UUID of its GPU.

    Raises UserError when a device is named twice, since CUDA then shows none at all.
    """
    if value is None:
        return [VisibleDevice(uuid) for uuid in gpu_uuids]
    devices: list[VisibleDevice] = []
    for entry in value.split(","):
        device = _device(entry.strip(), gpu_uuids, mig_instances or {})
        if device is None:
            break
        if device in devices:
            raise UserError(f"{VARIABLE}={value} names {entry.strip()} twice, and CUDA then shows no device: name each GPU once")
        devices.append(device)
    return devices


def _device(entry: str, gpu_uuids: Sequence[str], mig_instances: Mapping[str, str]) -> VisibleDevice | None:
    """The device that one entry names, or None for an entry that is invalid by CUDA's rules."""
    if entry.isdecimal():
        index = int(entry)
        return VisibleDevice(gpu_uuids[index]) if index < len(gpu_uuids) else None
    if entry.upper().startswith("MIG-GPU-"):  # drivers before 470: MIG-GPU-<uuid>/<GPU instance>/<compute instance>
        gpu, _, instance = entry[len("MIG-") :].partition("/")
        uuid = _unique(gpu, gpu_uuids)
        return VisibleDevice(uuid, entry) if uuid and instance else None
    if entry.upper().startswith("MIG-"):
        mig_uuid = _unique(entry, list(mig_instances))
        return VisibleDevice(mig_instances[mig_uuid], mig_uuid) if mig_uuid else None
    uuid = _unique(entry, gpu_uuids)
    return VisibleDevice(uuid) if uuid else None


def _unique(beginning: str, uuids: Sequence[str]) -> str | None:
    """The one UUID with this beginning (at least one digit after the ``GPU-`` or ``MIG-``), or None."""
    if len(beginning) <= len("GPU-"):
        return None
    matches = [uuid for uuid in uuids if uuid.lower().startswith(beginning.lower())]
    return matches[0] if len(matches) == 1 else None


def all_gpus(silent: dict[int, str] | None = None) -> list[NvmlGpu]:
    """Every GPU of this host in bus order. Raises NoDriver without a driver.

    A GPU that does not say who it is (it has fallen off the bus, say) raises GpuError; where ``silent`` is given it is left
    out, and its index and the reason are put there.
    """
    open_nvml()
    return [NvmlGpu(uuid) for uuid in _gpu_uuids(silent)]


def visible_gpus(environment: Mapping[str, str] | None = None) -> list[NvmlGpu]:
    """The GPUs that CUDA shows this process, in CUDA's order.

    Raises NoDriver without a driver, UserError where it cannot be told which GPUs CUDA's numbers mean.
    """
    open_nvml()
    environment = os.environ if environment is None else environment
    value = environment.get(VARIABLE)
    needs_mig = value is not None and "MIG-" in value.upper()
    silent: dict[int, str] = {}
    uuids = _gpu_uuids(silent)
    if value is None or any(entry.strip().isdecimal() for entry in value.split(",")):
        _require_cudas_numbers(uuids, silent, environment)
    devices = parse_visible_devices(value, uuids, _mig_instances() if needs_mig else None)
    return [NvmlGpu(device.gpu_uuid, device.mig_instance) for device in devices]


def _require_cudas_numbers(uuids: Sequence[str], silent: Mapping[int, str], environment: Mapping[str, str]) -> None:
    """Refuse where NVML's order need not be CUDA's: CUDA leaves out GPUs that do not answer, and sorts different models by speed."""
    for index, reason in silent.items():
        raise UserError(f"GPU {index} of this host does not answer ({reason}), so CUDA's numbers are not certain: set {VARIABLE} to UUIDs")
    if len(uuids) > 1 and environment.get(ORDER_VARIABLE) != "PCI_BUS_ID":
        models = sorted({NvmlGpu(uuid).name for uuid in uuids})
        if len(models) > 1:
            found = " and ".join(models)
            raise UserError(f"CUDA sorts different GPUs ({found}) by speed: set {ORDER_VARIABLE}=PCI_BUS_ID, or {VARIABLE} to UUIDs")


def gpu_for_cuda_device(cuda_index: int, environment: Mapping[str, str] | None = None) -> NvmlGpu:
    """The GPU behind CUDA device ``cuda_index`` of this process. Raises UserError when CUDA has no such device."""
    gpus = visible_gpus(environment)
    if not 0 <= cuda_index < len(gpus):
        value = (os.environ if environment is None else environment).get(VARIABLE)
        setting = f"{VARIABLE} is not set" if value is None else f"{VARIABLE}={value}"
        raise UserError(
            f"there is no CUDA device {cuda_index} here: {len(gpus)} visible ({setting}); start fewer ranks per node or show more GPUs"
        )
    return gpus[cuda_index]


def gpu_by_uuid(uuid: str) -> NvmlGpu:
    """The GPU with this UUID; the ``GPU-`` in front may be missing (as in torch's device properties). Raises UserError."""
    open_nvml()
    full = uuid if uuid.upper().startswith("GPU-") else f"GPU-{uuid}"
    match = _unique(full, _gpu_uuids())
    if match is None:
        raise UserError(f"no GPU {uuid} on this host: run `megatron-energy doctor` for the UUIDs there are")
    return NvmlGpu(match)


def _gpu_uuids(silent: dict[int, str] | None = None) -> list[str]:
    uuids: list[str] = []
    for index in range(call(pynvml.nvmlDeviceGetCount)):
        try:
            uuids.append(str(call(pynvml.nvmlDeviceGetUUID, call(pynvml.nvmlDeviceGetHandleByIndex, index))))
        except NoDriver:
            raise
        except GpuError as error:
            if silent is None:
                raise
            silent[index] = str(error)
    return uuids


def _mig_instances() -> dict[str, str]:
    """UUID of every MIG instance of this host -> UUID of its GPU."""
    instances: dict[str, str] = {}
    for uuid in _gpu_uuids():
        gpu = call(pynvml.nvmlDeviceGetHandleByUUID, uuid)
        try:
            slots = int(call(pynvml.nvmlDeviceGetMaxMigDeviceCount, gpu))
        except NotSupported:
            continue
        for slot in range(slots):
            try:
                instance = call(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, slot)
            except NotFound:  # an empty slot
                continue
            instances[str(call(pynvml.nvmlDeviceGetUUID, instance))] = uuid
    return instances
