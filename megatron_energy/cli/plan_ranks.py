"""``megatron-energy plan --by-rank`` and replay of its plans: own clocks for GPUs that are slower than their fellows."""

import argparse
import dataclasses
import math
from collections import Counter
from typing import TYPE_CHECKING

from megatron_energy import __version__
from megatron_energy.cli.pipeline_options import whole
from megatron_energy.errors import UserError

if TYPE_CHECKING:
    from megatron_energy.parallel.layout import Layout
    from megatron_energy.pipeline.schedule import Schedule
    from megatron_energy.planning.job_problem import JobProblem
    from megatron_energy.planning.plan import Plan
    from megatron_energy.profiles.ranks import RankProfiles

ROUNDING = 0.005
"""GPUs of a stage within half a percent of each other are planned as one kind, as slow as the slowest: measurements differ by as much."""

MOST_SLOWER = 100.0
"""Times as long as its fellows: a GPU that is slower, or as much faster, is none that a job would keep."""

ALL_CLASSES = 1 << 30


def slow_gpu(text: str) -> tuple[int, float]:
    """An argparse type: ``5=1.05``, rank 5 takes 5% longer."""
    rank, _, factor = text.partition("=")
    try:
        found = int(rank), float(factor)
    except ValueError:
        found = -1, math.nan
    if found[0] < 0 or not 1 / MOST_SLOWER <= found[1] <= MOST_SLOWER:
        raise argparse.ArgumentTypeError(f"'{text}' is not RANK=FACTOR, such as 5=1.05 for a rank 5 that takes 5% longer")
    return found


def add_rank_options(parser: argparse.ArgumentParser) -> None:
    """--by-rank and what belongs to it."""
    parser.add_argument(
        "--by-rank", action="store_true", help="own clocks for GPUs that differ, as the profile's column rank tells; needs --tensor, --data"
    )
    parser.add_argument(
        "--slower", type=slow_gpu, action="append", default=[], metavar="RANK=X", help="this rank takes X times as long (with --by-rank)"
    )
    parser.add_argument("--expert", type=whole(1), default=1, metavar="N", help="expert-parallel size: joins replicas (with --by-rank)")


def refuse_rank_options(args: argparse.Namespace) -> None:
    """Refuse options that mean nothing where all GPUs of a stage are planned alike.

    Raises:
        UserError: one was given.
    """
    for option, given in (("--slower", bool(args.slower)), ("--expert", args.expert > 1)):
        if given:
            raise UserError(f"{option} needs --by-rank: without it all GPUs of a stage are planned alike")


def plan_of_ranks(args: argparse.Namespace, schedule: "Schedule") -> tuple["Plan", tuple[int, ...]]:
    """(the plan, its clocks that no profile measured).

    Raises:
        UserError: options or profile do not fit.
    """
    from megatron_energy.planning.assemble import Purpose
    from megatron_energy.planning.job_plan import plan_job
    from megatron_energy.planning.plan import LAYOUT
    from megatron_energy.planning.replicas import stage_of_rank

    twice = [rank for rank, count in Counter(rank for rank, _ in args.slower).items() if count > 1]
    if twice:
        raise UserError(f"--slower: rank {twice[0]} is given more than once: keep one")
    layout = _layout(args.tensor, args.data, args.expert, args.pipeline)
    profiles = _slowed(_profiles(args, layout, schedule), dict(args.slower)).rounded(stage_of_rank(layout), ROUNDING)

    def job_of(ranks: "RankProfiles") -> "JobProblem":
        return _job(args, schedule, layout, ranks, slowdown=args.slowdown, straggler=args.straggler)

    job = job_of(profiles)
    measured_mhz = {int(mhz) for mhz in job.clock_mhz}
    if args.clock_step is not None:
        between = range(max(measured_mhz), min(measured_mhz), -args.clock_step)
        job = job_of(_at_clocks(profiles, {*between, *measured_mhz}))
    provenance = {
        **profiles.profiles[0].provenance,
        "blocking_power_w": job.problem.blocking_power_w,
        "profile_scale": args.profile_scale,
        "planned_with": f"megatron-energy {__version__}",
    }
    if args.slower:
        provenance["slower"] = " ".join(f"{rank}={factor!r}" for rank, factor in sorted(args.slower))
    sizes = {name: getattr(layout, name) for name in LAYOUT}
    purpose = Purpose(sizes, schedule, args.policy, args.max_switches, args.lead, provenance=provenance)
    plan = plan_job(job, purpose, effort=args.effort)
    return plan, tuple(sorted(plan.clocks_mhz - measured_mhz))


def replay_of_ranks(args: argparse.Namespace, plan: "Plan", schedule: "Schedule") -> tuple["Plan", tuple[int, ...]]:
    """(the plan with its figures evaluated anew, its clocks that no profile measured): every GPU as measured, none rounded.

    Raises:
        UserError: the profile does not fit the plan.
    """
    from megatron_energy.planning.job_plan import job_expectation

    sizes = plan.layout
    layout = _layout(sizes["tensor"], sizes["data"], sizes["expert"], sizes["pipeline"])
    try:
        told = [slow_gpu(text) for text in str(plan.provenance.get("slower", "")).split()]
    except argparse.ArgumentTypeError as error:
        raise UserError(f"{args.plan}: provenance.slower: {error}: make the plan again") from error
    profiles = _slowed(_profiles(args, layout, schedule), dict(told))
    power_w = plan.provenance.get("blocking_power_w")

    def job_of(ranks: "RankProfiles") -> "JobProblem":
        deadline = {"slowdown": plan.slowdown, "straggler": plan.straggler}
        otherwise_w = power_w if isinstance(power_w, float) else None
        return _job(args, schedule, layout, ranks, **deadline, otherwise_w=otherwise_w, most_classes=ALL_CLASSES)

    job = job_of(profiles)
    measured_mhz = {int(mhz) for mhz in job.clock_mhz}
    between = plan.clocks_mhz - measured_mhz
    if between:
        job = job_of(_at_clocks(profiles, plan.clocks_mhz | measured_mhz))
    expected = job_expectation(job, job.planned_clocks(plan), plan.lead_s)
    return dataclasses.replace(plan, schedule=schedule, expected=expected), tuple(sorted(between))


def _layout(tensor: int, data: int, expert: int, pipeline: int) -> "Layout":
    from megatron_energy.parallel.layout import Layout

    return Layout(tensor=tensor, data=data, expert=expert, pipeline=pipeline)


def _profiles(args: argparse.Namespace, layout: "Layout", schedule: "Schedule") -> "RankProfiles":
    from megatron_energy.planning.replicas import stage_of_rank
    from megatron_energy.profiles.files import load_rank_profiles
    from megatron_energy.profiles.sizes import check_sizes

    found = load_rank_profiles(args.profile, stage_of_rank(layout), args.profile_scale)
    for profile in found.profiles:
        check_sizes(profile, schedule.stages, schedule.chunks)
    return found


def _slowed(profiles: "RankProfiles", slower: dict[int, float]) -> "RankProfiles":
    unknown = sorted(rank for rank in slower if rank >= len(profiles.profile_of_rank))
    if unknown:
        raise UserError(f"--slower: rank {unknown[0]} is not one of this job's {len(profiles.profile_of_rank)}: give --tensor and --data")
    return profiles.slowed(slower)


def _at_clocks(profiles: "RankProfiles", clocks_mhz: set[int]) -> "RankProfiles":
    from megatron_energy.profiles.curves import interpolate_profile

    further = tuple(interpolate_profile(profile, sorted(clocks_mhz)) for profile in profiles.profiles)
    return dataclasses.replace(profiles, profiles=further)


def _job(
    args: argparse.Namespace,
    schedule: "Schedule",
    layout: "Layout",
    profiles: "RankProfiles",
    *,
    slowdown: float,
    straggler: float,
    otherwise_w: float | None = None,
    most_classes: int | None = None,
) -> "JobProblem":
    from megatron_energy.cli.job import blocking_power_of, check_baseline
    from megatron_energy.planning.job_setup import job_problem
    from megatron_energy.planning.replicas import MOST_CLASSES

    blocking_w = blocking_power_of(args, profiles.profiles[0], otherwise_w)
    most = MOST_CLASSES if most_classes is None else most_classes
    job = job_problem(schedule, layout, profiles, blocking_w, slowdown=slowdown, straggler=straggler, most_classes=most)
    check_baseline(job.problem, args.profile)
    return job
