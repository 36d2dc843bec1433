"""How a function of the emulated libnvidia-ml is written, found and called.

pynvml calls C functions: results travel through ``byref`` arguments (written here through ``._obj``), the return value
is an error code, which pynvml turns into its own exceptions. An emulated function is a plain Python function that is
registered under its C name; it raises :class:`Refuse` for an error code and returns nothing for success::

    @device("nvmlDeviceGetPowerUsage")
    def _power_usage(gpu: EmulatedGpu, milliwatts: Any) -> None:
        put(milliwatts, round(gpu.average_power_w() * 1000))
"""

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import pynvml

from megatron_energy.emulation.state import Fault

if TYPE_CHECKING:
    from megatron_energy.emulation.nvml import EmulatedNvml

Handler: TypeAlias = "Callable[..., Any]"

FUNCTIONS: dict[str, Handler] = {}
"""C name -> handler(library, *arguments) that returns an error code (or a string for nvmlErrorString)."""

DEVICE_FUNCTIONS: set[str] = set()
"""C names of the functions whose first argument is the handle of a GPU or a MIG instance."""

_GPU_HANDLES = 0xE0001000  # an emulated nvmlDevice_t is this plus the index: no valid address, so nothing can follow it
_MIG_HANDLES = 0xE0002000
MIG_SLOTS = 7  # instances a GPU can be split into (A100, H100)


class Refuse(Exception):
    """Ends an emulated function with an NVML error code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def system(name: str) -> Callable[[Handler], Handler]:
    """Register a function that needs no device: called with the library and the C arguments."""

    def register(function: Handler) -> Handler:
        def handler(library: "EmulatedNvml", *arguments: Any) -> int:
            library.require_initialised()
            function(library, *arguments)
            return int(pynvml.NVML_SUCCESS)

        FUNCTIONS[name] = _with_codes(handler)
        return function

    return register


def device(name: str, *, control: bool = False, mig: bool = False) -> Callable[[Handler], Handler]:
    """Register a function of a device: called with the :class:`EmulatedGpu` and the C arguments after the handle.

    ``control``: needs permission. ``mig``: works on the handle of a MIG instance too, and then sees its GPU.
    """

    def register(function: Handler) -> Handler:
        def handler(library: "EmulatedNvml", handle: Any, *arguments: Any) -> int:
            library.require_initialised()
            index, slot = read_handle(library, handle)
            gpu = library.gpus[index]
            if gpu.node.faults(index) & Fault.LOST:
                raise Refuse(pynvml.NVML_ERROR_GPU_IS_LOST)
            if slot is not None and not mig:
                raise Refuse(pynvml.NVML_ERROR_NOT_SUPPORTED)
            if control and not library.may_control():
                raise Refuse(pynvml.NVML_ERROR_NO_PERMISSION)
            function(gpu, *arguments)
            return int(pynvml.NVML_SUCCESS)

        FUNCTIONS[name] = _with_codes(handler)
        DEVICE_FUNCTIONS.add(name)
        return function

    return register


def _with_codes(handler: Handler) -> Handler:
    def call(library: "EmulatedNvml", *arguments: Any) -> Any:
        try:
            return handler(library, *arguments)
        except Refuse as refusal:
            return refusal.code

    return call


def number(argument: Any) -> int:
    """The integer in a C argument, which pynvml passes as a ctypes value or as a Python int."""
    return int(getattr(argument, "value", argument))


def put(reference: Any, value: int) -> None:
    """Write an integer through a ``byref`` argument."""
    reference._obj.value = value


def target(reference: Any) -> Any:
    """The structure or array behind a ``byref`` argument (arrays are also passed as they are)."""
    return getattr(reference, "_obj", reference)


def put_text(buffer: Any, text: str, size: Any = None) -> None:
    """Write a C string into a buffer."""
    raw = text.encode()
    if len(raw) >= min(len(buffer), len(buffer) if size is None else number(size)):
        raise Refuse(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    buffer.value = raw


def put_list(count: Any, array: Any, values: tuple[int, ...]) -> None:
    """NVML's protocol for lists: the caller's room in, the length out, INSUFFICIENT_SIZE when there is no room."""
    room = count._obj.value
    count._obj.value = len(values)
    if not values:
        return
    if array is None or room < len(values):
        raise Refuse(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    for position, value in enumerate(values):
        array[position] = value


def put_handle(reference: Any, index: int, slot: int | None = None) -> None:
    """Write the handle of a GPU, or of MIG instance ``slot`` of it, through a ``byref`` argument."""
    value = _GPU_HANDLES + index if slot is None else _MIG_HANDLES + index * MIG_SLOTS + slot
    ctypes.c_void_p.from_address(ctypes.addressof(reference._obj)).value = value


def read_handle(library: "EmulatedNvml", handle: Any) -> tuple[int, int | None]:
    """Index of the GPU and MIG slot (None: the whole GPU) behind a handle."""
    value = ctypes.cast(handle, ctypes.c_void_p).value if handle is not None else None
    if value is None:
        raise Refuse(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    slot: int | None = None
    index = value - _GPU_HANDLES
    if value >= _MIG_HANDLES:
        index, slot = divmod(value - _MIG_HANDLES, MIG_SLOTS)
    if not 0 <= index < len(library.gpus):
        raise Refuse(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    return index, slot
