"""``megatron-energy plan --graph FILE``: the clocks of a schedule that a file describes."""

import argparse
import dataclasses
import json
import time
from typing import TYPE_CHECKING

from megatron_energy import __version__
from megatron_energy.errors import UserError

if TYPE_CHECKING:
    from megatron_energy.planning.graph_plan import GraphPlan

SCHEDULE_OPTIONS = ("pipeline", "microbatches", "chunks", "group_size", "p2p", "warmup_flush", "clock_step")
"""Options that describe one of Megatron's schedules; a graph file stands for itself."""

SHOWN_SEGMENTS = 16
"""A unit with more segments is cut short in the text; the file has all of them."""


def plan_from_graph(args: argparse.Namespace) -> int:
    """Make, write and print the plan of a graph file; returns the exit status.

    Raises:
        UserError: options that do not go with a graph, or anything wrong in the files.
    """
    from megatron_energy.cli.job import blocking_power_of, check_baseline
    from megatron_energy.cli.output import check_writable
    from megatron_energy.planning.graph_file import load_graph
    from megatron_energy.planning.graph_plan import plan_graph
    from megatron_energy.planning.graph_problem import graph_problem
    from megatron_energy.profiles.files import load_profile

    _refuse_schedule_options(args)
    content, profile = load_graph(args.graph), load_profile(args.profile, args.profile_scale)
    problem = graph_problem(
        content,
        profile,
        blocking_power_of(args, profile),
        gpus_per_unit=args.tensor * args.data,
        slowdown=args.slowdown,
        straggler=args.straggler,
    )
    check_baseline(problem, args.profile)
    if args.out is not None:
        check_writable(args.out)
    begin_s = time.perf_counter()
    plan = plan_graph(content, problem, args.policy, max_switches=args.max_switches, effort=args.effort, lead_s=args.lead)
    provenance = {
        **profile.provenance,
        "blocking_power_w": problem.blocking_power_w,
        "profile_scale": args.profile_scale,
        "planned_with": f"megatron-energy {__version__}",
    }
    plan = dataclasses.replace(plan, solve_s=time.perf_counter() - begin_s, provenance=provenance)
    if args.out is not None:
        plan.save(args.out)
    if args.json:
        print(json.dumps(_summary(plan, args.tensor * args.data)))
    else:
        _print(plan, args.out)
    return 0


def _refuse_schedule_options(args: argparse.Namespace) -> None:
    for name in SCHEDULE_OPTIONS:
        given = getattr(args, name)
        if given not in (None, False) and not (name == "chunks" and given == 1):
            raise UserError(f"--graph stands for its own schedule and clocks: leave out --{name.replace('_', '-')}")
    if args.by_rank or args.slower or args.expert > 1:
        raise UserError("--graph gives every unit a stage of its own in the profile: leave out --by-rank, --slower and --expert")


def _summary(plan: "GraphPlan", gpus_per_unit: int) -> dict[str, object]:
    expected = {name: value for name, value in dataclasses.asdict(plan.expected).items() if name != "deadline_s"}
    return {
        "policy": plan.policy,
        "gpus": len(plan.units) * gpus_per_unit,
        "deadline_s": plan.expected.deadline_s,
        **expected,
        "bound_share_percent": plan.expected.bound_share_percent,
        "switches_per_gpu_mean": plan.switches_mean,
        "switches_per_gpu_max": plan.switches_max,
        "solve_s": plan.solve_s,
        "emulated": bool(plan.provenance.get("emulated", False)),
    }


def _print(plan: "GraphPlan", path: str | None) -> None:
    e = plan.expected
    print(f"{plan.policy} plan for {len(plan.units)} unit{'s' if len(plan.units) > 1 else ''}")
    if plan.provenance.get("emulated"):
        print("All figures are emulated: the profile was learned on emulated GPUs.")
    print(f"\niteration, s: baseline {e.baseline_iteration_s:.6g}, plan {e.iteration_s:.6g} ({e.slowdown_percent + 0.0:+.3f}%)")
    print(f"energy, J: baseline {e.baseline_energy_j:,.6g}, plan {e.energy_j:,.6g} ({-e.saved_percent + 0.0:+.2f}%)")
    if e.bound_saved_percent is not None:
        print(f"bound: at this deadline of {e.deadline_s:.6g} s no plan saves more than {e.bound_saved_percent:.2f}%")
    if e.limit_saved_percent is not None:
        print(f"limit: no plan with {plan.max_switches} switches saves more than {e.limit_saved_percent:.2f}%")
    print(f"switches per GPU and iteration: {plan.switches_mean:.1f} mean, {plan.switches_max} at most\n")
    for unit in plan.units:
        shown = [f"{s.operation} {s.clock_mhz}" for s in unit.segments[:SHOWN_SEGMENTS]]
        more = len(unit.segments) - SHOWN_SEGMENTS
        shown += [f"... {more} more"] if more > 0 else []
        print(f"{unit.name}: {', '.join(shown) or 'no operation whose clock matters'}")
    if path is not None:
        print(f"\nwritten to {path}")
