"""What the planning commands print."""

from typing import Any

from megatron_energy.planning.plan import Plan, Segment


def summary_of(plan: Plan) -> dict[str, Any]:
    """The figures of a plan for --json."""
    e = plan.expected
    return {
        "policy": plan.policy,
        "p2p": plan.schedule.p2p,
        "gpus": plan.gpus,
        "iteration_s": e.iteration_s,
        "energy_j": e.energy_j,
        "baseline_iteration_s": e.baseline_iteration_s,
        "baseline_energy_j": e.baseline_energy_j,
        "deadline_s": e.deadline_s,
        "saved_percent": e.saved_percent,
        "slowdown_percent": e.slowdown_percent,
        "bound_saved_percent": e.bound_saved_percent,
        "bound_share_percent": e.bound_share_percent,
        "limit_saved_percent": e.limit_saved_percent,
        "switches_per_gpu_mean": plan.switches_mean,
        "switches_per_gpu_max": plan.switches_max,
        "solve_s": plan.solve_s,
        "emulated": bool(plan.provenance.get("emulated", False)),
    }


def print_plan(plan: Plan, path: str | None) -> None:
    """A short text for people: figures, then the clocks of every stage."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    e = plan.expected
    emulated = ", from an emulated profile" if plan.provenance.get("emulated") else ""
    console.print(f"[bold]{plan.policy}[/bold] plan for {plan.gpus} GPUs, p2p {plan.schedule.p2p}{emulated}")
    figures = Table(box=None, pad_edge=False, show_header=True)
    for heading in ("", "baseline", "plan", "change"):
        figures.add_column(heading, justify="left" if not heading else "right")
    figures.add_row("iteration, s", f"{e.baseline_iteration_s:.4f}", f"{e.iteration_s:.4f}", f"{e.slowdown_percent:+.3f}%")
    figures.add_row("energy, J", f"{e.baseline_energy_j:,.1f}", f"{e.energy_j:,.1f}", f"{-e.saved_percent:+.2f}%")
    console.print(figures)
    if e.bound_saved_percent is not None:
        share = f" ({e.bound_share_percent:.1f}% of it reached)" if e.bound_share_percent is not None else ""
        console.print(f"no plan can save more than {e.bound_saved_percent:.2f}% at this deadline{share}")
    if e.limit_saved_percent is not None:
        console.print(f"no plan with {plan.max_switches} switches can save more than {e.limit_saved_percent:.2f}%")
    console.print(f"switches per GPU and iteration: {plan.switches_mean:.1f} mean, {plan.switches_max} at most")
    stages = Table(box=None, pad_edge=False)
    stages.add_column("stage", justify="right")
    stages.add_column("clocks in the order of the iteration, MHz (F/B chunk.microbatch: where a segment begins)")
    for unit in plan.units:
        stages.add_row(str(unit.stage), _segments(unit.segments))
    console.print(stages)
    if path is not None:
        console.print(f"written to {path}", soft_wrap=True)


SHOWN_SEGMENTS = 12


def _segments(segments: tuple[Segment, ...]) -> str:
    shown = "  ".join(f"{_place(s)} {s.clock_mhz}" for s in segments[:SHOWN_SEGMENTS])
    return shown + (f"  ... {len(segments) - SHOWN_SEGMENTS} more" if len(segments) > SHOWN_SEGMENTS else "")


def _place(segment: Segment) -> str:
    if segment.kind in ("forward", "backward"):
        return f"{segment.kind[0].upper()}{segment.chunk}.{segment.microbatch}"
    return segment.kind
