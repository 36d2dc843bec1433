"""NVML through the real ``pynvml``: initialisation, errors, and whether the library underneath is an emulated one."""

import os
from collections.abc import Callable
from typing import Any, Protocol, cast

import pynvml

from megatron_energy.gpus.errors import GpuError, GpuLost, NoDriver, NoPermission, NotFound, NotSupported

NO_DRIVER = "no NVIDIA driver here: use --energy-device emulated or run on a GPU host"

_LOST = (pynvml.NVML_ERROR_GPU_IS_LOST, getattr(pynvml, "NVML_ERROR_RESET_REQUIRED", 16))
_UNSUPPORTED = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
_NO_DRIVER = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_UNINITIALIZED)

_initialised: tuple[int, object] | None = None  # (process id, library)


class EmulatedLibrary(Protocol):
    """How an emulated libnvidia-ml makes itself known to this module (the real one has no such symbols)."""

    emulated: bool

    def may_control(self) -> bool:
        """Whether the calling process may change clocks and limits."""


def open_nvml() -> None:
    """Initialise NVML once per process.

    Keyed by the process id: NVML's state does not survive a fork, so a forked child initialises again. NVML counts
    references, so initialising and shutting down elsewhere in the program (Megatron's EnergyMonitor does) is no matter.
    Raises NoDriver where there is no driver, GpuError when the driver does not work.
    """
    global _initialised
    if _initialised is not None and _initialised[0] == os.getpid() and _initialised[1] is pynvml.nvmlLib:
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if error.value in _NO_DRIVER:
            raise NoDriver(NO_DRIVER) from error
        raise GpuError(f"NVML does not start: {error}; run nvidia-smi to see whether the driver works") from error
    _initialised = (os.getpid(), pynvml.nvmlLib)


def call(function: Callable[..., Any], *arguments: object) -> Any:
    """Call a function of pynvml; its exceptions become ours, with the function's name in the message."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        raise translated(error, getattr(function, "__name__", "NVML")) from error


def translated(error: pynvml.NVMLError, request: str) -> GpuError:
    """Our exception for one of pynvml's; ``request`` names the function that failed."""
    code, text = error.value, f"{request}: {error}"
    if code == pynvml.NVML_ERROR_NO_PERMISSION:
        return NoPermission(f"{text} (needs root, CAP_SYS_ADMIN or the clock daemon)")
    if code in _UNSUPPORTED:
        return NotSupported(text)
    if code in _LOST:
        return GpuLost(f"{text} (see dmesg for an Xid; the GPU needs a reset)")
    if code in _NO_DRIVER:
        return NoDriver(f"{text} (the driver was unloaded, or something in this process shut NVML down)")
    if code == pynvml.NVML_ERROR_NOT_FOUND:
        return NotFound(text)
    return GpuError(text)


def emulated_library() -> EmulatedLibrary | None:
    """The emulated libnvidia-ml that pynvml talks to, or None when it talks to the real one or to none yet."""
    library = pynvml.nvmlLib
    return cast(EmulatedLibrary, library) if getattr(library, "emulated", False) is True else None


def is_emulated() -> bool:
    """Whether the GPUs of this process are emulated. Figures from them must be called so wherever a person reads them."""
    return emulated_library() is not None


def driver_version() -> str:
    """Version of the NVIDIA driver."""
    open_nvml()
    return str(call(pynvml.nvmlSystemGetDriverVersion))


def nvml_version() -> str:
    """Version of the NVML library."""
    open_nvml()
    return str(call(pynvml.nvmlSystemGetNVMLVersion))
