"""``megatron-energy frontier``: the least energy at every iteration time that is worth having."""

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from megatron_energy import __version__
from megatron_energy.cli.pipeline_options import add_pipeline_options, add_profile_options, schedule_of, whole

if TYPE_CHECKING:
    from megatron_energy.cli.job import Job
    from megatron_energy.planning.frontier import Frontier, Planner, Point

POLICIES = ("operations", "segments")


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "frontier",
        allow_abbrev=False,
        help="least energy at every iteration time",
        description="The useful (time, energy) points from the fastest iteration to the one that uses the least energy, each with the "
        "bound and a plan. Energies count one GPU per stage unless --tensor or --data are given.",
    )
    add_profile_options(parser)
    add_pipeline_options(parser, slowdown=False)
    parser.add_argument("--points", type=whole(2), default=50, metavar="N", help="how many (default: 50)")
    parser.add_argument("--policy", choices=POLICIES, default="operations", help="how clocks are chosen (default: operations)")
    parser.add_argument(
        "--max-switches", type=whole(0), default=8, metavar="K", help="of segments: switches per GPU and iteration (default: 8)"
    )
    parser.add_argument(
        "--clock-step", type=whole(1), metavar="MHZ", help="also use clocks between the measured ones, in such steps from the highest"
    )
    parser.add_argument("--out", metavar="FILE", help="write the points (CSV)")
    parser.add_argument("--plans", metavar="DIR", help="write the plan of every point (JSON) into this folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(handler=handler)


def handler(args: argparse.Namespace) -> int:
    """Compute, write and print the frontier."""
    from megatron_energy.cli.frontier_output import print_frontier, summary_of, write_csv
    from megatron_energy.cli.job import job_of
    from megatron_energy.cli.output import check_writable
    from megatron_energy.planning.frontier import frontier
    from megatron_energy.planning.scale import solved_program

    schedule = schedule_of(args)
    job = job_of(args, schedule, args.tensor * args.data, slowdown=0.0, straggler=args.straggler)
    if args.clock_step is not None:
        job = job.at_clocks(range(max(job.measured_mhz), min(job.measured_mhz), -args.clock_step))
    if args.out is not None:
        check_writable(args.out, "frontier")
    if args.plans is not None:
        check_writable(str(Path(args.plans) / plan_name(0)), "plan", "--plans")
    begin_s = time.perf_counter()
    found = frontier(job.problem, args.points, planner=_planner(args), program=solved_program(job.resized, schedule))
    solve_s = time.perf_counter() - begin_s
    if args.out is not None:
        write_csv(found, args.out)
    if args.plans is not None:
        _save_plans(args, job, found)
    if args.json:
        print(json.dumps(summary_of(found, job, args.policy, solve_s)))
    else:
        print_frontier(found, job, args.policy, solve_s)
        for written in (args.out, args.plans):
            if written is not None:
                print(f"written to {written}")
    return 0


def plan_name(number: int) -> str:
    """File of a point's plan."""
    return f"plan-{number:03d}.json"


def _planner(args: argparse.Namespace) -> "Planner | None":
    from megatron_energy.planning.frontier import segments_planner

    return segments_planner(args.max_switches) if args.policy == "segments" else None


def _save_plans(args: argparse.Namespace, job: "Job", found: "Frontier") -> None:
    from dataclasses import replace

    from megatron_energy.planning.assemble import Purpose, assemble

    layout = {"tensor": args.tensor, "context": 1, "expert": 1, "data": args.data, "pipeline": args.pipeline}
    provenance = {
        **job.profile.provenance,
        "blocking_power_w": job.problem.blocking_power_w,
        "profile_scale": args.profile_scale,
        "planned_with": f"megatron-energy {__version__}",
    }
    purpose = Purpose(layout, job.schedule, args.policy, args.max_switches, provenance=provenance)
    for number, point in enumerate(found.points):
        due = replace(job.problem, given_deadline_s=point.deadline_s, slowdown=_slowdown(job, point))
        plan = assemble(due, point.clocks, purpose, bound_energy_j=point.bound_j)
        plan.save(Path(args.plans) / plan_name(number))


def _slowdown(job: "Job", point: "Point") -> float:
    return max(0.0, point.deadline_s / job.problem.straggler_s - 1)
