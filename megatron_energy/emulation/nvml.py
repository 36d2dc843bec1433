"""An emulated libnvidia-ml: the object that stands in for the C library under the real pynvml."""

import os
from typing import Any

import pynvml

# Importing these registers their functions.
from megatron_energy.emulation import nvml_clocks, nvml_devices, nvml_power, nvml_sensors  # noqa: F401
from megatron_energy.emulation.faults import Faults
from megatron_energy.emulation.gpu import EmulatedGpu
from megatron_energy.emulation.nvml_calls import FUNCTIONS, Handler, Refuse
from megatron_energy.emulation.state import NodeState

CONTROL_VARIABLE = "MEGATRON_ENERGY_EMULATED_CONTROL"
"""``no``: this process may read the emulated GPUs but not control them, as without root on a real host."""


class Function:
    """One function of the library; ``restype`` and ``argtypes`` may be set on it, as on a C function, to no effect."""

    def __init__(self, library: "EmulatedNvml", name: str, handler: Handler) -> None:
        self.restype: Any = None
        self.argtypes: Any = None
        self._library = library
        self._name = name
        self._handler = handler

    def __call__(self, *arguments: Any) -> Any:
        """Call it with C arguments; returns what the C function would."""
        faults = self._library.faults
        if faults is None or self._name == "nvmlErrorString":
            return self._handler(self._library, *arguments)
        return faults.call(self._library, self._name, self._handler, arguments)


class EmulatedNvml:
    """What ``pynvml.nvmlLib`` becomes: C names as attributes.

    A device function that is not emulated returns NOT_SUPPORTED; any other unknown name is missing from the library,
    which pynvml reports as FUNCTION_NOT_FOUND.
    """

    emulated = True

    def __init__(self, gpus: list[EmulatedGpu]) -> None:
        """``gpus``: all GPUs of one node, in order."""
        self.gpus = gpus
        self.references = 0  # nvmlInit minus nvmlShutdown
        self.faults: Faults | None = None  # what goes wrong in this process

    @property
    def node(self) -> NodeState:
        """The node whose GPUs this library shows."""
        return self.gpus[0].node

    def may_control(self) -> bool:
        """Whether this process may set clocks and limits: the node and the environment must both allow it."""
        return bool(self.node.control) and os.environ.get(CONTROL_VARIABLE, "yes").lower() not in ("no", "0", "false")

    def require_initialised(self) -> None:
        """Refuse with UNINITIALIZED when nvmlInit was not called."""
        if self.references <= 0:
            raise Refuse(pynvml.NVML_ERROR_UNINITIALIZED)

    def __getattr__(self, name: str) -> Function:
        handler = FUNCTIONS.get(name)
        if handler is None and name.startswith("nvmlDevice"):
            handler = _not_supported
        if handler is None:
            raise AttributeError(name)
        function = Function(self, name, handler)
        self.__dict__[name] = function  # found directly next time, and the same object, as with a C library
        return function


def _not_supported(library: EmulatedNvml, *_arguments: Any) -> int:
    return int(pynvml.NVML_ERROR_UNINITIALIZED if library.references <= 0 else pynvml.NVML_ERROR_NOT_SUPPORTED)
