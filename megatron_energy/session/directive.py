"""What a rank is told to do in its next iteration."""

from dataclasses import dataclass, field

from megatron_energy.records.steps import ClockRequest
from megatron_energy.records.summary import Phase

TransitionPoint = tuple[str, int, int, str]
"""(kind, chunk, microbatch, edge): where in Megatron's schedule a clock request is anchored. ``kind`` is forward, backward, grad-sync,
optimizer or iteration; ``edge`` is begin or end; chunk and microbatch are -1 where they do not apply."""

ITERATION_BEGIN: TransitionPoint = ("iteration", -1, -1, "begin")


@dataclass(frozen=True)
class Directive:
    """The phase of the next iteration, and the clock requests of one rank in it, by transition point."""

    phase: Phase
    requests: dict[TransitionPoint, tuple[ClockRequest, ...]] = field(default_factory=dict)
    plan_version: int = 0


def constant_clock(phase: Phase, clock_mhz: int) -> Directive:
    """One clock for the whole iteration; 0 MHz gives the choice back to the GPU."""
    return Directive(phase, {ITERATION_BEGIN: (ClockRequest(clock_mhz),)})


AFTER_S = 0.001
"""Between two requests of which the second has to win."""


def evaluation_requests(directive: Directive) -> dict[TransitionPoint, tuple[ClockRequest, ...]]:
    """What a rank requests in an evaluation that comes before the iteration of ``directive``.

    Plans and sweeps are about training iterations: an evaluation runs at the GPU's own clock, not at whatever clock the last
    operation of an iteration needed. A plan may have asked, at the optimizer, for a raise some time after it: that one is for an
    operation of the next iteration, so the evaluation asks once more after it.
    """
    if directive.phase not in ("sweep", "planned"):
        return {}
    at_optimizer = [r.delay_s for point, requests in directive.requests.items() if point[0] == "optimizer" for r in requests]
    under_way_s = max(at_optimizer, default=0.0)
    again = (ClockRequest(0, under_way_s + AFTER_S),) if under_way_s > 0 else ()
    return {ITERATION_BEGIN: (ClockRequest(0), *again)}
