"""What a GPU keeps from one iteration to the next, and what an operation costs on it."""

from dataclasses import dataclass, field

from megatron_energy.emulation.settle.requests import Request
from megatron_energy.emulation.workload import Kind, OperatingPoint, Workload
from megatron_energy.records.iteration import RankIteration


@dataclass(slots=True)
class Gpu:
    """State of one rank's GPU at the end of its last iteration.

    Attributes:
        rank, stage: whose it is.
        time_s: virtual time.
        clock_mhz: clock in force (the lock; the power cap may hold the GPU below it).
        limit_w: power limit.
        energy_mj: energy used since the emulation began.
        reading_mj: what the energy counter shows: its value at its last update.
        ran_mhz, power_w: SM clock it ran at and power it drew, means of the last iteration that took time; 0 before.
        capped: whether the power cap held its clock below the request in that iteration.
        stretch: factor on the time of its computations: a GPU slower than its fellows.
        pending: requests issued and not yet in force.
    """

    rank: int
    stage: int
    clock_mhz: int
    limit_w: float
    time_s: float = 0.0
    energy_mj: float = 0.0
    reading_mj: int = 0
    ran_mhz: float = 0.0
    power_w: float = 0.0
    capped: bool = False
    stretch: float = 1.0
    pending: list[Request] = field(default_factory=list)

    def show(self, record: RankIteration) -> None:
        """Keep what sensors show after this iteration."""
        if record.time_s > 0:
            self.ran_mhz, self.power_w, self.capped = record.mean_clock_mhz, record.power_w, record.throttled_s > 0


class Costs:
    """The workload's operating points, remembered: a run asks for few different ones, but very often."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._points: dict[tuple[int, int, Kind, int, float], OperatingPoint] = {}
        self._blocking: dict[tuple[int, int], float] = {}

    def point(self, gpu: Gpu, chunk: int, kind: Kind) -> OperatingPoint:
        """An operation on this GPU at its clock in force."""
        key = (gpu.stage, chunk, kind, gpu.clock_mhz, gpu.limit_w)
        point = self._points.get(key)
        if point is None:
            point = self._points[key] = self._workload.point(*key)
        if gpu.stretch != 1.0 and kind != "grad-sync":
            return point._replace(time_s=point.time_s * gpu.stretch)
        return point

    def blocking_power_w(self, gpu: Gpu) -> float:
        """Power of this GPU while it waits."""
        key = (gpu.stage, gpu.clock_mhz)
        power = self._blocking.get(key)
        if power is None:
            power = self._blocking[key] = self._workload.blocking_power_w(*key)
        return power
