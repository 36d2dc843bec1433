"""Clock requests on their way: issued, queued at the driver lock of the node, then in force."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from megatron_energy.emulation.catalog import GpuModel

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class RequestLatency:
    """What a clock request costs; all zero for tests of other things.

    Attributes:
        call_s: from its turn at the driver until the call returns.
        lock_s: how long one call keeps the driver from the other GPUs of its node.
        in_force_s: from the return of the call until the clock is in force.
    """

    call_s: float = 0.0
    lock_s: float = 0.0
    in_force_s: float = 0.0

    @classmethod
    def of(cls, gpu: GpuModel) -> "RequestLatency":
        """The catalog's: the median call."""
        return cls(gpu.request_median_s, gpu.request_lock_s, gpu.in_force_s)


@dataclass(slots=True, eq=False)
class Request:
    """One request of one GPU. ``needed_s`` is when the first operation that was meant to run at this clock began."""

    rank: int
    clock_mhz: int
    issued_s: float
    ahead: int | None = None
    needed_s: float | None = None

    def operation_begins(self, at_s: float) -> None:
        """An operation of the GPU begins: is it the one that needs the clock?"""
        if self.needed_s is not None:
            return
        if self.ahead is None:
            needed = self.issued_s < at_s
        else:
            needed = self.ahead == 0
            self.ahead -= 1
        if needed:
            self.needed_s = at_s


@dataclass
class RequestQueue:
    """All requests under way. It outlives iterations: a request may come into force in the next one."""

    node: Sequence[int | str]  # by rank
    latency: RequestLatency
    _driver_free_s: dict[int | str, float] = field(default_factory=dict)
    _events: list[tuple[float, int, bool, Request]] = field(default_factory=list)  # (s, order, comes into force, request)
    _order: int = 0

    @property
    def next_s(self) -> float:
        """When :meth:`pop` has something to do next."""
        return self._events[0][0] if self._events else NEVER

    def issue(self, request: Request) -> None:
        """The GPU reaches its anchor: the request goes to the driver at ``issued_s``."""
        self._push(request.issued_s, False, request)

    def postpone(self, in_force_s: float, request: Request) -> None:
        """Keep a request that comes into force after its GPU's iteration."""
        self._push(in_force_s, True, request)

    def pop(self) -> tuple[float, Request] | None:
        """Handle the next event: the request that comes into force and when, or None where one only entered the driver."""
        at_s, _, in_force, request = heapq.heappop(self._events)
        if in_force:
            return at_s, request
        node, latency = self.node[request.rank], self.latency
        turn_s = max(at_s, self._driver_free_s.get(node, 0.0))  # the driver serves the GPUs of a node one after the other
        self._driver_free_s[node] = turn_s + latency.lock_s
        self._push(turn_s + latency.call_s + latency.in_force_s, True, request)
        return None

    def _push(self, at_s: float, in_force: bool, request: Request) -> None:
        self._order += 1
        heapq.heappush(self._events, (at_s, self._order, in_force, request))
