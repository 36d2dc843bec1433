"""A plan as a Markdown table, for TensorBoard's text page and for people who read it elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass

from megatron_energy.observe.facts import PlanFacts
from megatron_energy.observe.figures import figure


@dataclass(frozen=True)
class PlannedGpus:
    """GPUs that follow one list of clocks.

    Attributes:
        name: what a person calls them, such as ``stage 0``.
        count: how many GPUs.
        segments: (where it begins, MHz) in the order of the iteration, such as ``("forward 3, chunk 1", 1200)``; an empty place
            means the begin of the iteration.
    """

    name: str
    count: int
    segments: Sequence[tuple[str, int]]

    @property
    def switches(self) -> int:
        """Changes of the requested clock per iteration, the wrap to the next iteration included."""
        clocks = [clock for _, clock in self.segments]
        return sum(a != b for a, b in zip(clocks, clocks[1:] + clocks[:1], strict=True))


def plan_markdown(facts: PlanFacts, gpus: Sequence[PlannedGpus], *, emulated: bool) -> str:
    """The plan's expectation, then one row per group of GPUs."""
    force = ", dry run: not in force" if facts.dry_run else ""
    lines = [f"## Plan: {facts.plan_policy or facts.policy}{force}{' (emulated GPUs)' if emulated else ''}", ""]
    lines += [f"- {fact}" for fact in _expectations(facts, " (emulated)" if emulated else "")]
    lines += ["", "| GPUs | count | switches | SM clock in the order of the iteration |", "| --- | ---: | ---: | --- |"]
    lines += [f"| {group.name} | {group.count} | {group.switches} | {_segments(group.segments)} |" for group in gpus]
    return "\n".join(lines)


def _expectations(facts: PlanFacts, mark: str) -> list[str]:
    """``mark`` stands behind every figure that comes from the GPUs."""
    found = []
    if facts.expected_time_s is not None:
        found.append(f"expected iteration time: {facts.expected_time_s:.4g} s{mark}")
    if facts.expected_energy_j is not None:
        found.append(f"expected energy: {facts.expected_energy_j:,.0f} J per iteration, all GPUs{mark}")
    if facts.expected_saved_percent is not None:
        slowdown = figure(facts.expected_slowdown_percent, "+.2f", "%")
        found.append(f"expected saving: {figure(facts.expected_saved_percent, '.2f', '%')} at {slowdown} time{mark}")
    if facts.bound_saved_percent is not None:
        found.append(f"no plan can save more than {figure(facts.bound_saved_percent, '.2f', '%')} at this deadline{mark}")
    if facts.switches_mean is not None and facts.switches_max is not None:
        found.append(f"switches per GPU and iteration: {facts.switches_mean:.1f} on average, {facts.switches_max} at most")
    return found


def _segments(segments: Sequence[tuple[str, int]]) -> str:
    return " → ".join(f"**{clock} MHz**" + (f" from {place}" if place else "") for place, clock in segments)
