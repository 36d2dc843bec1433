"""Emulated NVML: initialisation, versions, finding a device, and what identifies it."""

import uuid
from typing import TYPE_CHECKING, Any

import pynvml

from megatron_energy.emulation.gpu import EmulatedGpu
from megatron_energy.emulation.nvml_calls import (
    DEVICE_FUNCTIONS,
    FUNCTIONS,
    MIG_SLOTS,
    Refuse,
    device,
    number,
    put,
    put_handle,
    put_text,
    read_handle,
    system,
    target,
)
from megatron_energy.emulation.state import Fault

if TYPE_CHECKING:
    from megatron_energy.emulation.nvml import EmulatedNvml

# Versions that tools can parse and people cannot mistake. 12.8: the CUDA of driver branch 570.
DRIVER_VERSION = "570.00.emulated"
NVML_VERSION = "12.570.00.emulated"
CUDA_VERSION = 12080

# Part of the name -> (NVML architecture, compute capability, PCI device id with NVIDIA's vendor id).
# Capabilities: developer.nvidia.com/cuda-gpus; device ids: pci-ids.ucw.cz; architectures: nvml.h.
_BOARDS: dict[str, tuple[int, tuple[int, int], int]] = {
    "V100": (5, (7, 0), 0x1DB110DE),
    "A100": (7, (8, 0), 0x20B210DE),
    "A40": (7, (8, 6), 0x223510DE),
    "H100": (9, (9, 0), 0x233010DE),
    "H200": (9, (9, 0), 0x233510DE),
}


def _init(library: "EmulatedNvml", *_flags: Any) -> int:
    library.references += 1
    return int(pynvml.NVML_SUCCESS)


FUNCTIONS["nvmlInit_v2"] = _init
FUNCTIONS["nvmlInitWithFlags"] = _init


@system("nvmlShutdown")
def _shutdown(library: "EmulatedNvml") -> None:
    library.references -= 1


def _error_string(_library: "EmulatedNvml", code: Any) -> bytes:
    return b"Emulated NVML error %d" % number(code)


FUNCTIONS["nvmlErrorString"] = _error_string


@system("nvmlSystemGetDriverVersion")
def _driver_version(_library: "EmulatedNvml", text: Any, size: Any) -> None:
    put_text(text, DRIVER_VERSION, size)


@system("nvmlSystemGetNVMLVersion")
def _nvml_version(_library: "EmulatedNvml", text: Any, size: Any) -> None:
    put_text(text, NVML_VERSION, size)


@system("nvmlSystemGetCudaDriverVersion_v2")
@system("nvmlSystemGetCudaDriverVersion")
def _cuda_version(_library: "EmulatedNvml", version: Any) -> None:
    put(version, CUDA_VERSION)


@system("nvmlUnitGetCount")
def _unit_count(_library: "EmulatedNvml", count: Any) -> None:
    put(count, 0)  # units are S-class chassis: there are none


@system("nvmlDeviceGetCount")
@system("nvmlDeviceGetCount_v2")
def _count(library: "EmulatedNvml", count: Any) -> None:
    put(count, len(library.gpus))


@system("nvmlDeviceGetHandleByIndex")
@system("nvmlDeviceGetHandleByIndex_v2")
def _handle_by_index(library: "EmulatedNvml", index: Any, handle: Any) -> None:
    if not 0 <= number(index) < len(library.gpus):
        raise Refuse(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    _give(library, handle, number(index))


def _give(library: "EmulatedNvml", handle: Any, index: int, slot: int | None = None) -> None:
    """Write a handle; a GPU that fell off the bus has none any more."""
    if library.node.faults(index) & Fault.LOST:
        raise Refuse(pynvml.NVML_ERROR_GPU_IS_LOST)
    put_handle(handle, index, slot)


@system("nvmlDeviceGetHandleByUUID")
def _handle_by_uuid(library: "EmulatedNvml", wanted: Any, handle: Any) -> None:
    text = _text(wanted)
    for gpu in library.gpus:
        if gpu.uuid == text:
            return _give(library, handle, gpu.index)
        for slot in range(gpu.node.gpu(gpu.index).mig_instances):
            if mig_uuid(gpu, slot) == text:
                return _give(library, handle, gpu.index, slot)
    raise Refuse(pynvml.NVML_ERROR_NOT_FOUND)


@system("nvmlDeviceGetHandleBySerial")
def _handle_by_serial(library: "EmulatedNvml", wanted: Any, handle: Any) -> None:
    _find(library, handle, [serial(gpu) for gpu in library.gpus], _text(wanted))


@system("nvmlDeviceGetHandleByPciBusId")
@system("nvmlDeviceGetHandleByPciBusId_v2")
def _handle_by_bus_id(library: "EmulatedNvml", wanted: Any, handle: Any) -> None:
    text = _text(wanted).upper()
    domain, _, rest = text.partition(":")
    _find(library, handle, [bus_id(gpu) for gpu in library.gpus], f"{domain.rjust(8, '0')}:{rest}")


def _find(library: "EmulatedNvml", handle: Any, names: list[str], wanted: str) -> None:
    if wanted not in names:
        raise Refuse(pynvml.NVML_ERROR_NOT_FOUND)
    _give(library, handle, names.index(wanted))


def _text(argument: Any) -> str:
    raw = getattr(argument, "value", argument)
    if raw is None:
        raise Refuse(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    return raw.decode() if isinstance(raw, bytes) else str(raw)


def serial(gpu: EmulatedGpu) -> str:
    """Serial number of the board: 13 digits that follow from the UUID."""
    return str(uuid.UUID(gpu.uuid.removeprefix("GPU-")).int % 10**13).rjust(13, "0")


def bus_id(gpu: EmulatedGpu) -> str:
    """PCI bus id, ``00000000:07:00.0`` for GPU 0 and three buses further for each next one."""
    return f"00000000:{7 + 3 * gpu.index:02X}:00.0"


def mig_uuid(gpu: EmulatedGpu, slot: int) -> str:
    """UUID of a MIG instance."""
    return f"MIG-{uuid.uuid5(uuid.UUID(gpu.uuid.removeprefix('GPU-')), f'mig/{slot}')}"


@device("nvmlDeviceGetIndex")
def _index(gpu: EmulatedGpu, index: Any) -> None:
    put(index, gpu.index)


@device("nvmlDeviceGetMinorNumber")
def _minor_number(gpu: EmulatedGpu, minor: Any) -> None:
    put(minor, gpu.index)


@device("nvmlDeviceGetName", mig=True)
def _name(gpu: EmulatedGpu, text: Any, size: Any) -> None:
    put_text(text, f"{gpu.model.name} (emulated)", size)


@device("nvmlDeviceGetSerial")
def _serial(gpu: EmulatedGpu, text: Any, size: Any) -> None:
    put_text(text, serial(gpu), size)


@system("nvmlDeviceGetUUID")
def _uuid(library: "EmulatedNvml", handle: Any, text: Any, size: Any) -> None:
    index, slot = read_handle(library, handle)
    gpu = library.gpus[index]
    put_text(text, gpu.uuid if slot is None else mig_uuid(gpu, slot), size)


DEVICE_FUNCTIONS.add("nvmlDeviceGetUUID")  # of a GPU or of an instance, each with its own answer


@device("nvmlDeviceGetPciInfo_v3")
def _pci_info(gpu: EmulatedGpu, reference: Any) -> None:
    info = target(reference)
    info.busId = bus_id(gpu).encode()
    info.busIdLegacy = bus_id(gpu).removeprefix("0000").encode()
    info.domain, info.bus, info.device = 0, 7 + 3 * gpu.index, 0
    info.pciDeviceId = _board(gpu)[2]
    info.pciSubSystemId = 0


def _board(gpu: EmulatedGpu) -> tuple[int, tuple[int, int], int]:
    for part, facts in _BOARDS.items():
        if part in gpu.model.name:
            return facts
    raise Refuse(pynvml.NVML_ERROR_NOT_SUPPORTED)


@device("nvmlDeviceGetArchitecture")
def _architecture(gpu: EmulatedGpu, architecture: Any) -> None:
    put(architecture, _board(gpu)[0])


@device("nvmlDeviceGetCudaComputeCapability")
def _compute_capability(gpu: EmulatedGpu, major: Any, minor: Any) -> None:
    put(major, _board(gpu)[1][0])
    put(minor, _board(gpu)[1][1])


@device("nvmlDeviceGetMigMode")
def _mig_mode(gpu: EmulatedGpu, current: Any, pending: Any) -> None:
    enabled = int(gpu.node.gpu(gpu.index).mig_instances > 0)
    put(current, enabled)
    put(pending, enabled)


@device("nvmlDeviceGetMaxMigDeviceCount")
def _max_mig_devices(gpu: EmulatedGpu, count: Any) -> None:
    put(count, MIG_SLOTS if gpu.node.gpu(gpu.index).mig_instances else 0)


@device("nvmlDeviceGetMigDeviceHandleByIndex")
def _mig_handle(gpu: EmulatedGpu, slot: Any, handle: Any) -> None:
    if number(slot) >= gpu.node.gpu(gpu.index).mig_instances:
        raise Refuse(pynvml.NVML_ERROR_NOT_FOUND)
    put_handle(handle, gpu.index, number(slot))


@device("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", mig=True)
def _mig_parent(gpu: EmulatedGpu, handle: Any) -> None:
    put_handle(handle, gpu.index)


@system("nvmlDeviceIsMigDeviceHandle")
def _is_mig(library: "EmulatedNvml", handle: Any, answer: Any) -> None:
    put(answer, int(read_handle(library, handle)[1] is not None))
