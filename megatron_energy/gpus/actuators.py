"""Ways to change one GPU's clock, behind one small interface: the driver itself, or nobody (dry run).

The clock daemon's client is a third one. Whoever holds an actuator may change this GPU and no other.
"""

from typing import Protocol

from megatron_energy.gpus.device import Gpu, request_sm_clock
from megatron_energy.gpus.errors import GpuError


class Actuator(Protocol):
    """Changes the clock of one GPU. Calls take milliseconds and come from one thread at a time."""

    def set_max_clock(self, clock_mhz: int) -> None:
        """Let the GPU run at ``clock_mhz`` at most, and fall below when it idles. Raises GpuError and its kinds."""

    def release(self) -> None:
        """Give the choice of the clock back to the GPU. Raises as :meth:`set_max_clock`."""


class NvmlActuator:
    """Asks the driver directly, which needs CAP_SYS_ADMIN.

    What it sets outlives the process: someone must release it after a crash (a watchdog process, or the clock daemon instead).
    """

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def set_max_clock(self, clock_mhz: int) -> None:
        """Lock the clock into (lowest supported, ``clock_mhz``). A clock that is not supported is a GpuError."""
        try:
            request_sm_clock(self._gpu, clock_mhz)
        except ValueError as error:
            raise GpuError(str(error)) from error

    def release(self) -> None:
        """Remove the lock."""
        self._gpu.reset_sm_clocks()


class DryRunActuator:
    """Asks for nothing: what ``--energy-policy dry-run`` uses. ``asked_mhz`` is what it was last asked for; 0: released."""

    def __init__(self) -> None:
        self.asked_mhz = 0

    def set_max_clock(self, clock_mhz: int) -> None:
        """Remember the clock."""
        self.asked_mhz = clock_mhz

    def release(self) -> None:
        """Remember that there is none."""
        self.asked_mhz = 0
