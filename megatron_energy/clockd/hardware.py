"""A GPU as clockd needs it: its clock range and the power limit *setting*, in NVML's whole numbers.

The setting is not what :meth:`NvmlGpu.power_limits` reports: that is the limit enforced, the least of several. What is
restored must be what was set.
"""

from collections.abc import Iterable
from typing import Any

import pynvml

from megatron_energy.errors import UserError
from megatron_energy.gpus.errors import GpuError, NoDriver, NotSupported
from megatron_energy.gpus.library import call
from megatron_energy.gpus.nvml import NvmlGpu
from megatron_energy.gpus.visible import all_gpus


class Hardware:
    """One GPU. Every method may raise the errors of :mod:`megatron_energy.gpus.errors`."""

    def __init__(self, gpu: NvmlGpu) -> None:
        self._gpu = gpu
        self.uuid = gpu.uuid

    def split(self) -> bool:
        """Whether MIG splits the GPU, or virtual machines share it: its clocks then belong to several users."""
        return self._gpu.mig_enabled() or bool(self._gpu.shared_with_machines())

    def clocks_mhz(self) -> tuple[int, ...]:
        """Supported SM clocks, highest first."""
        return self._gpu.supported_sm_clocks_mhz()

    def lock(self, least_mhz: int, most_mhz: int) -> None:
        """Keep the SM clock in a range."""
        self._gpu.set_sm_clock_range(least_mhz, most_mhz)

    def unlock(self) -> None:
        """Give the choice of the SM clock back to the GPU."""
        self._gpu.reset_sm_clocks()

    def power_limit_mw(self) -> int:
        """The power limit as set."""
        return int(call(pynvml.nvmlDeviceGetPowerManagementLimit, self._handle()))

    def power_bounds_mw(self) -> tuple[int, int]:
        """The least and the highest power limit there is."""
        least_mw, most_mw = call(pynvml.nvmlDeviceGetPowerManagementLimitConstraints, self._handle())
        return int(least_mw), int(most_mw)

    def set_power_limit_mw(self, limit_mw: int) -> None:
        """Set the power limit."""
        if self.split():
            raise NotSupported(f"GPU {self.index} is split by MIG: its power limit is shared by all instances and is left alone")
        call(pynvml.nvmlDeviceSetPowerManagementLimit, self._handle(), limit_mw)

    @property
    def index(self) -> int:
        """NVML's number of the GPU."""
        return self._gpu.index

    def minor_number(self) -> int:
        """Number of the GPU's device file."""
        return int(call(pynvml.nvmlDeviceGetMinorNumber, self._handle()))

    def _handle(self) -> Any:
        return call(pynvml.nvmlDeviceGetHandleByUUID, self.uuid)


def all_hardware(silent: dict[int, str]) -> dict[str, Hardware]:
    """Every GPU of this host by its UUID.

    One that does not answer is left out, and its index and the reason are put into ``silent``: the others must be restored
    and lent all the same. Raises UserError where there is no driver that works.
    """
    try:
        return {gpu.uuid: Hardware(gpu) for gpu in all_gpus(silent)}
    except NoDriver as error:
        raise UserError("no NVIDIA driver here: clockd runs where the GPUs are (to try it without any: docs/clockd.md)") from error
    except GpuError as error:
        raise UserError(f"the GPUs of this host cannot be listed: {error}") from error


def unambiguous_numbers(gpus: Iterable[Hardware]) -> dict[int, str] | None:
    """Number -> UUID; None where NVML's indices and the minor numbers of the device files are not the same, or not known.

    A GPU that does not answer has no number.
    """
    numbers: dict[int, str] = {}
    for gpu in gpus:
        try:
            index, minor = gpu.index, gpu.minor_number()
        except NotSupported:
            return None
        except GpuError:
            continue
        if minor != index:
            return None
        numbers[index] = gpu.uuid
    return numbers
