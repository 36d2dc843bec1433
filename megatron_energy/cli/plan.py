"""``megatron-energy plan``: the clocks of every stage, from a profile."""

import argparse
import json
import time
from typing import TYPE_CHECKING

from megatron_energy import __version__
from megatron_energy.cli.pipeline_options import add_pipeline_options, add_profile_options, real, schedule_of, whole
from megatron_energy.cli.plan_graph import plan_from_graph
from megatron_energy.cli.plan_ranks import add_rank_options, plan_of_ranks, refuse_rank_options

if TYPE_CHECKING:
    from megatron_energy.cli.job import Job
    from megatron_energy.planning.plan import Plan

POLICIES = ("segments", "operations", "roles", "stages", "uniform", "power-limit", "envpipe", "maximum")


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "plan",
        allow_abbrev=False,
        help="make a plan from a profile",
        description="Make the plan that saves the most energy at a deadline, from a profile. "
        "Energies count one GPU per stage unless --tensor or --data are given.",
    )
    add_profile_options(parser)
    add_pipeline_options(parser)
    parser.add_argument("--graph", metavar="FILE", help="plan the schedule that this file describes instead (docs/graphs.md)")
    parser.add_argument("--policy", choices=POLICIES, default="segments", help="how clocks are chosen (default: segments)")
    parser.add_argument("--max-switches", type=whole(0), default=8, metavar="K", help="switches per GPU and iteration (default: 8)")
    parser.add_argument(
        "--clock-step", type=whole(1), metavar="MHZ", help="also use clocks between the measured ones, in such steps from the highest"
    )
    parser.add_argument("--effort", choices=("default", "high"), default="default", help="how long to search (high: minutes)")
    parser.add_argument("--lead", type=real(0), default=0.0, metavar="S", help="how early raises have to be requested, in s (default: 0)")
    add_rank_options(parser)
    parser.add_argument("--out", metavar="FILE", help="write the plan (JSON)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(handler=handler)


def handler(args: argparse.Namespace) -> int:
    """Make, write and print the plan."""
    if args.graph is not None:
        return plan_from_graph(args)
    from megatron_energy.cli.job import job_of
    from megatron_energy.cli.output import check_writable, print_plan, summary_of

    schedule = schedule_of(args)
    if args.by_rank:
        if args.out is not None:
            check_writable(args.out)
        plan, interpolated_mhz = plan_of_ranks(args, schedule)
    else:
        refuse_rank_options(args)
        job = job_of(args, schedule, args.tensor * args.data, slowdown=args.slowdown, straggler=args.straggler)
        if args.clock_step is not None:
            job = job.at_clocks(range(max(job.measured_mhz), min(job.measured_mhz), -args.clock_step))
        if args.out is not None:
            check_writable(args.out)
        plan = _plan(args, job)
        interpolated_mhz = job.unmeasured(plan.clocks_mhz)
    if args.out is not None:
        plan.save(args.out)
    if args.json:
        print(json.dumps(summary_of(plan, interpolated_mhz)))
    else:
        print_plan(plan, interpolated_mhz, args.out)
    return 0


def _plan(args: argparse.Namespace, job: "Job") -> "Plan":
    from megatron_energy.planning.assemble import Purpose, assemble
    from megatron_energy.planning.policies import solve
    from megatron_energy.planning.scale import scaled_bound

    begin_s = time.perf_counter()
    found = scaled_bound(job.resized, job.schedule)
    solution = solve(job.problem, args.policy, max_switches=args.max_switches, effort=args.effort, lead_s=args.lead, found=found)
    layout = {"tensor": args.tensor, "context": 1, "expert": 1, "data": args.data, "pipeline": args.pipeline}
    provenance = {
        **job.profile.provenance,
        "blocking_power_w": job.problem.blocking_power_w,
        "profile_scale": args.profile_scale,
        "planned_with": f"megatron-energy {__version__}",
    }
    return assemble(
        job.problem,
        solution.clocks,
        Purpose(layout, job.schedule, args.policy, args.max_switches, args.lead, provenance=provenance),
        bound_energy_j=solution.bound.energy_j,
        limit_energy_j=solution.limit_energy_j,
        solve_s=time.perf_counter() - begin_s,
    )
