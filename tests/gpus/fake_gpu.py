"""A GPU for tests of what stands above the device interface: its readings are what the test says."""

from megatron_energy.gpus.device import EventReason, PowerLimits, Scope
from megatron_energy.gpus.errors import GpuLost


class FakeGpu:
    """Implements megatron_energy.gpus.device.Gpu. ``energy_mj`` None: no counter. ``lost``: every reading fails."""

    uuid = "GPU-00000000-0000-0000-0000-000000000000"
    index = 0
    name = "Fake GPU"
    energy_scope: Scope = "gpu"
    power_source = "instant power"

    def __init__(self, energy_mj: int | None = None, power_w: float = 0.0) -> None:
        self.energy_mj = energy_mj
        self.watts = power_w
        self.lost = False
        self.clock_ranges_mhz: list[tuple[int, int]] = []

    def total_energy_mj(self) -> int | None:
        self._answer()
        return self.energy_mj

    def power_w(self) -> float:
        self._answer()
        return self.watts

    def _answer(self) -> None:
        if self.lost:
            raise GpuLost("GPU is lost")

    def mig_enabled(self) -> bool:
        return False

    def supported_sm_clocks_mhz(self) -> tuple[int, ...]:
        return (1410, 1200, 210)

    def supported_memory_clocks_mhz(self) -> tuple[int, ...]:
        return (1593,)

    def sm_clock_mhz(self) -> int:
        return 1410

    def memory_clock_mhz(self) -> int:
        return 1593

    def event_reasons(self) -> EventReason:
        return EventReason.NONE

    def power_limits(self) -> PowerLimits:
        return PowerLimits(400.0, 400.0, 100.0, 400.0)

    def set_power_limit_w(self, limit_w: float) -> None:
        raise NotImplementedError

    def set_sm_clock_range(self, min_mhz: int, max_mhz: int) -> None:
        self.clock_ranges_mhz.append((min_mhz, max_mhz))

    def reset_sm_clocks(self) -> None:
        self.clock_ranges_mhz.append((0, 0))

    def temperature_c(self) -> int:
        return 40

    def utilisation(self) -> float:
        return 1.0
