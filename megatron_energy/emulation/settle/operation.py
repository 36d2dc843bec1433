"""An operation under way on one or several GPUs that run it in lock-step."""

from collections.abc import Sequence

from megatron_energy.emulation.settle.gpu import Costs, Gpu
from megatron_energy.emulation.settle.timeline import Timeline
from megatron_energy.emulation.workload import Kind

Member = tuple[Gpu, Timeline]


class Operation:
    """Work that its members do together, at the pace of the slowest; a clock may change on the way.

    A member that would be done sooner alone works for its share of the time and waits for the rest, so its power is the mean of
    both: lock-step GPUs meet several times within every layer.

    Attributes:
        end_s: when it will be done if no clock changes any more.
        version: counts the changes of ``end_s``.
    """

    __slots__ = ("_costs", "_duration_s", "_remaining", "_since_s", "chunk", "end_s", "kind", "members", "version")

    def __init__(self, members: Sequence[Member], kind: Kind, chunk: int, microbatch: int, costs: Costs, at_s: float, work: float) -> None:
        self.members, self.kind, self.chunk = members, kind, chunk
        self._costs = costs
        self._remaining = work  # of the whole operation
        self._since_s = at_s
        self.version = 0
        for gpu, timeline in members:
            timeline.open(at_s, kind, chunk, microbatch)
            for request in gpu.pending:
                request.operation_begins(at_s)
        self._set_pace(at_s)

    def clock_changed(self, at_s: float) -> None:
        """A member's clock in force has changed: what remains is done at the new pace."""
        if self._duration_s > 0:
            self._remaining = max(0.0, self._remaining - (at_s - self._since_s) / self._duration_s)
        self._since_s = at_s
        self.version += 1
        self._set_pace(at_s)

    def _set_pace(self, at_s: float) -> None:
        points = [self._costs.point(gpu, self.chunk, self.kind) for gpu, _ in self.members]
        self._duration_s = max(point.time_s for point in points)
        self.end_s = at_s + self._remaining * self._duration_s
        for (gpu, timeline), point in zip(self.members, points, strict=True):
            power_w = point.power_w
            if point.time_s < self._duration_s:
                busy = point.time_s / self._duration_s
                power_w = busy * power_w + (1.0 - busy) * self._costs.blocking_power_w(gpu)
            timeline.set(at_s, power_w, point.clock_mhz, point.throttled)
