"""The device interface: what the rest of the program may ask of a GPU.

Real GPUs (:class:`megatron_energy.gpus.nvml.NvmlGpu`) and test doubles implement :class:`Gpu`. Units are in the names:
clocks in MHz, power in W, energy in mJ (NVML's own unit, integers, so that differences stay exact).
"""

from dataclasses import dataclass
from enum import IntFlag
from typing import Literal, Protocol, TypeAlias, runtime_checkable

Scope: TypeAlias = Literal["gpu", "module"]
"""What an energy counter covers: the GPU with its memory, or a whole module with the CPU beside it (GH200)."""


class EventReason(IntFlag):
    """Why a GPU runs at the clock it runs at (``nvmlClocksEventReason*`` of nvml.h, same values)."""

    NONE = 0x0
    IDLE = 0x1
    LOCKED_CLOCKS = 0x2  # NVML: ApplicationsClocksSetting; also reported for locked clocks
    POWER_CAP = 0x4
    HARDWARE_SLOWDOWN = 0x8
    SYNC_BOOST = 0x10
    THERMAL = 0x20
    HARDWARE_THERMAL = 0x40
    POWER_BRAKE = 0x80
    DISPLAY = 0x100


THROTTLING = (
    EventReason.POWER_CAP | EventReason.HARDWARE_SLOWDOWN | EventReason.THERMAL | EventReason.HARDWARE_THERMAL | EventReason.POWER_BRAKE
)
"""Reasons that mean: slower than requested, against the request."""


@dataclass(frozen=True, slots=True)
class PowerLimits:
    """Power limits of one GPU in W."""

    current_w: float
    default_w: float
    minimum_w: float
    maximum_w: float


@runtime_checkable
class Gpu(Protocol):
    """One physical GPU. Every method may raise the errors of :mod:`megatron_energy.gpus.errors`."""

    @property
    def uuid(self) -> str:
        """Identity of the GPU, ``GPU-...``; the same for every process and container."""

    @property
    def index(self) -> int:
        """NVML's index on this host. Not CUDA's: see :mod:`megatron_energy.gpus.visible`."""

    @property
    def name(self) -> str:
        """Product name, for example ``NVIDIA A100-SXM4-80GB``."""

    @property
    def energy_scope(self) -> Scope:
        """What :meth:`total_energy_mj` covers."""

    def mig_enabled(self) -> bool:
        """Whether the GPU is split into instances (MIG); its clocks then belong to several users and are not ours to set."""

    def supported_sm_clocks_mhz(self) -> tuple[int, ...]:
        """SM clocks that can be requested, highest first."""

    def supported_memory_clocks_mhz(self) -> tuple[int, ...]:
        """Memory clocks, highest first. Read for information; memory clocks are never set."""

    def sm_clock_mhz(self) -> int:
        """SM clock in force now."""

    def memory_clock_mhz(self) -> int:
        """Memory clock in force now."""

    def event_reasons(self) -> EventReason:
        """Why the clock in force is what it is."""

    def power_w(self) -> float:
        """Power now, from the best sensor there is (see ``power_source``)."""

    @property
    def power_source(self) -> str:
        """Which sensor :meth:`power_w` reads, with the reason when it is not the instant one."""

    def total_energy_mj(self) -> int | None:
        """Energy counter since the driver was loaded, or None where the GPU has none."""

    def power_limits(self) -> PowerLimits:
        """Power limit in force and its bounds."""

    def set_power_limit_w(self, limit_w: float) -> None:
        """Set the power limit. Raises NoPermission, NotSupported."""

    def set_sm_clock_range(self, min_mhz: int, max_mhz: int) -> None:
        """Keep the SM clock within [min, max]. NVML has no getter for this range. Raises NoPermission, NotSupported."""

    def reset_sm_clocks(self) -> None:
        """Give the choice of the SM clock back to the GPU. Raises NoPermission, NotSupported."""

    def temperature_c(self) -> int:
        """Core temperature in degrees Celsius."""

    def utilisation(self) -> float:
        """Share of the last sampling period in which any kernel ran, 0 to 1."""


def request_sm_clock(gpu: Gpu, clock_mhz: int) -> None:
    """Let ``gpu`` run at ``clock_mhz`` at most, and fall to its lowest clock when it idles.

    The range is always (lowest supported, ``clock_mhz``): a range of one clock would keep an idle GPU's clock up.
    Raises ValueError for a clock that is not supported, and what ``set_sm_clock_range`` raises.
    """
    supported = gpu.supported_sm_clocks_mhz()
    if clock_mhz not in supported:
        nearest = min(supported, key=lambda mhz: abs(mhz - clock_mhz))
        raise ValueError(f"{gpu.name} has no SM clock of {clock_mhz} MHz; the nearest is {nearest} MHz")
    gpu.set_sm_clock_range(supported[-1], clock_mhz)
