"""Whether a plan's requests bring its segments about in time, by the times of a replay.

Figures of a plan are those of its segments: as if every clock were in force where its segment begins. Requests are what a run issues.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from megatron_energy.pipeline.graph import Graph, IntArray
from megatron_energy.planning.plan import Plan, TransitionRequest, UnitPlan
from megatron_energy.planning.requests import ANCHORS, Timing

ROUNDING_S = 1e-6


@dataclass(frozen=True)
class RequestCheck:
    """What the requests of an iteration do, one GPU per class of identical ones.

    Attributes:
        requests: how many there are.
        raises: how many of them ask for a higher clock.
        late_s: of every raise that is in force after its operation has begun, by how much.
    """

    requests: int
    raises: int
    late_s: tuple[float, ...]

    @property
    def latest_s(self) -> float:
        """Seconds by which the worst raise is late; 0 where all are in time."""
        return max(self.late_s, default=0.0)


def check_requests(graph: Graph, plan: Plan, timing: Timing) -> RequestCheck:
    """Follow every request of a plan that does not tell ranks apart.

    Args:
        graph: one replica of the plan's schedule.
        plan: its units by stage.
        timing: of the plan's replay.

    Raises:
        KeyError: graph and plan do not have the same steps; the argument says of what kind the request is that shows it.
    """
    raises: list[float] = []
    for unit, chain in zip(graph.units, graph.chains, strict=True):
        own = plan.unit(unit.stage)
        points = _Points(graph, chain, timing)
        before = dict(zip(own.segments, (own.segments[-1], *own.segments[:-1]), strict=True))
        for request in own.requests:
            point, late_s = points.follow(request, plan.lead_s)
            segment = next((s for s in own.segments if (s.kind, s.chunk, s.microbatch) == point), None)
            if segment is None:  # a step that the plan does not know of lies between a request and its segment
                raise KeyError(f"a clock request for {point[0]}, where none of its segments begins")
            if segment.clock_mhz > before[segment].clock_mhz:
                raises.append(late_s)
    late = tuple(s for s in raises if s > ROUNDING_S)
    return RequestCheck(sum(len(u.requests) for u in plan.units), len(raises), late)


class _Points:
    """Transition points of one unit, in the order of the iteration."""

    def __init__(self, graph: Graph, chain: IntArray, timing: Timing) -> None:
        self.timing = timing
        self.order = [int(v) for v in chain if graph.vertices[int(v)].kind in ANCHORS]
        self.points = [(v.kind, v.chunk, v.microbatch) for v in (graph.vertices[vertex] for vertex in self.order)]
        self.place: dict[tuple[str, int, int], int] = {point: index for index, point in enumerate(self.points)}

    def follow(self, r: TransitionRequest, lead_s: float) -> tuple[tuple[str, int, int], float]:
        """(the operation that a request is for, how many seconds after its begin the clock is in force)."""
        anchor = (r.kind, r.chunk, r.microbatch)
        if anchor not in self.place:
            raise KeyError(f"requests at {r.kind}, which the profile has not")
        place = self.place[anchor]
        at_s = (self.timing.start_s if r.edge == "begin" else self.timing.end_s)[self.order[place]] + r.delay_s
        iterations, target = divmod(place + (r.edge == "end") + r.ahead, len(self.order))
        due_s = self.timing.start_s[self.order[target]] + iterations * self.timing.period_s
        return self.points[target], float(at_s + lead_s - due_s)


def described(check: RequestCheck, lead_s: float) -> str:
    """The check in a line for people."""
    if not check.requests:
        return "requests: the file has none; its segments are evaluated as if every clock were in force where its segment begins"
    if check.late_s:
        return f"requests: {len(check.late_s)} of {check.raises} raises would be in force late, by up to {check.latest_s:.4f} s"
    return f"requests: {check.requests} bring the segments about, raises in time (asked for {lead_s:g} s early)"


def switching(units: Sequence[UnitPlan]) -> bool:
    """Whether any clock changes, so that requests are needed."""
    return any(u.switches for u in units)
