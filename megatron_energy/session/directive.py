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
