"""``megatron-energy replay``: what a plan gives on a profile, evaluated anew."""

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING

from megatron_energy.cli.pipeline_options import add_profile_options
from megatron_energy.cli.plan_ranks import replay_of_ranks
from megatron_energy.errors import UserError
from megatron_energy.pipeline.schedule import P2P_MODES, P2pMode, Schedule

if TYPE_CHECKING:
    from megatron_energy.cli.job import Job
    from megatron_energy.planning.plan import Plan
    from megatron_energy.planning.request_check import RequestCheck

TOLD_PERCENT = 0.01
"""Further from the file's own figures than this, they are shown as well."""


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
    from megatron_energy.cli.output import print_plan, summary_of
    from megatron_energy.planning.plan_file import load_plan

    plan = load_plan(args.plan)
    requests: RequestCheck | None = None
    if plan.by_rank or "slower" in plan.provenance:  # GPUs that differ may still have the same clocks
        replayed, interpolated_mhz = replay_of_ranks(args, plan, _schedule(plan.schedule, args.p2p))
    else:
        job = _job(args, plan)
        (replayed, requests), interpolated_mhz = _replayed(args.plan, plan, job), job.unmeasured(plan.clocks_mhz)
    if args.json:
        print(json.dumps({**summary_of(replayed, interpolated_mhz), **_further(plan, requests)}))
    else:
        print_plan(replayed, interpolated_mhz)
        for line in _remarks(plan, replayed, requests):
            print(line)
    return 0


def _further(plan: "Plan", requests: "RequestCheck | None") -> dict[str, float | int | None]:
    """What the file says, and what its requests do (None: not looked at, where ranks are told apart)."""
    return {
        "told_iteration_s": plan.expected.iteration_s,
        "told_saved_percent": plan.expected.saved_percent,
        "requests": None if requests is None else requests.requests,
        "late_raises": None if requests is None else len(requests.late_s),
        "latest_raise_s": None if requests is None else requests.latest_s,
    }


def _remarks(plan: "Plan", replayed: "Plan", requests: "RequestCheck | None") -> list[str]:
    from megatron_energy.planning.request_check import described, switching

    lines = ["", "These are figures of the segments; requests of plans that tell ranks apart are not followed."] if requests is None else []
    if requests is not None and switching(plan.units):
        lines = ["", described(requests, plan.lead_s)]
    told, found = plan.expected, replayed.expected
    if told.baseline_iteration_s and (
        abs(told.saved_percent - found.saved_percent) > TOLD_PERCENT or abs(told.slowdown_percent - found.slowdown_percent) > TOLD_PERCENT
    ):
        lines.append(f"the file itself expects {told.saved_percent:.2f}% less energy at {told.slowdown_percent:+.2f}% time")
    return lines


def _job(args: argparse.Namespace, plan: "Plan") -> "Job":
    """The plan's job on this profile, at the measured clocks and at those of the plan that lie between them."""
    from megatron_energy.cli.job import job_of

    power_w = plan.provenance.get("blocking_power_w")
    job = job_of(
        args,
        _schedule(plan.schedule, args.p2p),
        plan.gpus // plan.schedule.stages,
        slowdown=plan.slowdown,
        straggler=plan.straggler,
        blocking_power_w=power_w if isinstance(power_w, float) else None,
    )
    between = job.unmeasured(plan.clocks_mhz)
    low_mhz, high_mhz = min(job.measured_mhz), max(job.measured_mhz)
    outside = [mhz for mhz in between if not low_mhz <= mhz <= high_mhz]
    if outside:
        raise UserError(
            f"{args.plan} uses {outside[0]} MHz, but {args.profile} has measured {low_mhz} to {high_mhz} MHz: "
            "replay with the profile that the plan was made from"
        )
    return job.at_clocks(between) if between else job


def _schedule(planned: Schedule, p2p: P2pMode | None) -> Schedule:
    if p2p is None:
        return planned
    flush = planned.warmup_flush and p2p in ("overlap", "overlap-wait")  # the other modes have none
    return dataclasses.replace(planned, p2p=p2p, warmup_flush=flush)


def _replayed(path: str, plan: "Plan", job: "Job") -> "tuple[Plan, RequestCheck]":
    from megatron_energy.pipeline.replay import replay
    from megatron_energy.planning.assemble import expectation
    from megatron_energy.planning.request_check import check_requests
    from megatron_energy.planning.requests import Timing, clock_columns

    try:
        clocks = clock_columns(job.problem.graph, job.problem.tables.clock_mhz, plan.units)
    except KeyError as error:
        kind, chunk, microbatch = error.args[0]
        raise UserError(
            f"{path} begins a segment at {kind} {microbatch} of chunk {chunk}, which its schedule does not have: make the plan again"
        ) from error
    done = replay(job.problem.graph, job.problem.durations(clocks))
    try:
        requests = check_requests(job.problem.graph, plan, Timing(done.start_s, done.end_s, done.makespan_s))
    except KeyError as error:
        raise UserError(f"{path} has {error.args[0]}: replay with the profile it was made from") from error
    return dataclasses.replace(plan, schedule=job.schedule, expected=expectation(job.problem, clocks, lead_s=plan.lead_s)), requests
