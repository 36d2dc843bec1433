"""``megatron-energy replay``: what a plan gives on a profile, evaluated anew."""

import argparse
import dataclasses
import json

from megatron_energy.cli.output import print_plan, summary_of
from megatron_energy.cli.pipeline_options import add_profile_options, job_of
from megatron_energy.errors import UserError
from megatron_energy.pipeline.schedule import P2P_MODES


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "replay",
        allow_abbrev=False,
        help="evaluate a plan on a profile",
        description="Replay a plan on the dependency graph of its schedule, with the times and energies of a profile.",
    )
    add_profile_options(parser)
    parser.add_argument("--plan", required=True, metavar="FILE", help="plan (JSON)")
    parser.add_argument("--p2p", choices=P2P_MODES, help="replay in this communication mode instead of the plan's")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(handler=handler)


def handler(args: argparse.Namespace) -> int:
    """Load, replay and print."""
    from megatron_energy.planning.assemble import expectation
    from megatron_energy.planning.plan import load_plan
    from megatron_energy.planning.requests import clock_columns

    plan = load_plan(args.plan)
    schedule = dataclasses.replace(plan.schedule, p2p=args.p2p) if args.p2p else plan.schedule
    job = job_of(args, schedule, plan.gpus // plan.schedule.stages)
    try:
        clocks = clock_columns(job.problem.graph, job.problem.tables.clock_mhz, plan.units)
    except KeyError as error:
        raise UserError(f"{args.plan} begins a segment at {error.args[0]}, which its schedule does not have: make the plan again") from error
    except ValueError as error:
        raise UserError(f"{args.plan} uses {error} MHz, which {args.profile} has not measured: replay with the profile it was made from") from error
    replayed = dataclasses.replace(plan, schedule=schedule, expected=expectation(job.problem, clocks))
    if args.json:
        print(json.dumps(summary_of(replayed)))
    else:
        print_plan(replayed, None)
    return 0
