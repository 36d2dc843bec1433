"""Options that describe a pipeline and its profile, shared by the planning commands."""

import argparse
import dataclasses
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from megatron_energy.errors import UserError
from megatron_energy.pipeline.build import build_graph
from megatron_energy.pipeline.schedule import P2P_MODES, P2pMode, Schedule
from megatron_energy.planning.problem import Problem
from megatron_energy.profiles.curves import interpolate_profile
from megatron_energy.profiles.files import load_profile
from megatron_energy.profiles.profile import Profile
from megatron_energy.profiles.tables import build_tables, has_instruction, transfer_time_s


def whole(minimum: int) -> Callable[[str], int]:
    """An argparse type: a whole number of at least ``minimum``."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if value < minimum:
            raise argparse.ArgumentTypeError(f"'{text}' is not a whole number >= {minimum}")
        return value

    return parse


def real(minimum: float) -> Callable[[str], float]:
    """An argparse type: a finite number of at least ``minimum``."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= minimum):
            raise argparse.ArgumentTypeError(f"'{text}' is not a number >= {minimum:g}")
        return value

    return parse


def add_profile_options(parser: argparse.ArgumentParser) -> None:
    """--profile and what belongs to it."""
    parser.add_argument("--profile", required=True, metavar="F", help="CSV with time and energy per stage, instruction and clock")
    parser.add_argument("--profile-scale", type=real(1e-9), default=1.0, metavar="X", help="multiply the profile's times and energies by X")
    parser.add_argument("--blocking-power", type=real(0), metavar="W", help="power of a GPU that waits in communication, in W")
    parser.add_argument("--gpu", metavar="NAME", help="take the blocking power from this GPU of the catalog, such as a100-sxm4-80gb")


def add_pipeline_options(parser: argparse.ArgumentParser) -> None:
    """The schedule and the parallel sizes."""
    parser.add_argument("--pipeline", type=whole(1), required=True, metavar="S", help="pipeline-parallel size")
    parser.add_argument("--chunks", type=whole(1), default=1, metavar="V", help="model chunks per stage (virtual pipeline size)")
    parser.add_argument("--microbatches", type=whole(1), required=True, metavar="M", help="microbatches per pipeline and iteration")
    parser.add_argument("--group-size", type=whole(1), metavar="G", help="microbatches that a chunk runs in a row (default: S)")
    parser.add_argument("--tensor", type=whole(1), default=1, metavar="N", help="tensor-parallel size: so many GPUs per stage")
    parser.add_argument("--data", type=whole(1), default=1, metavar="N", help="data-parallel size, likewise")
    parser.add_argument("--p2p", choices=P2P_MODES, help="communication mode (default: overlap with chunks, else ideal)")
    parser.add_argument(
        "--warmup-flush", action="store_true", help="Megatron's --overlap-p2p-communication-warmup-flush is on (overlap modes)"
    )
    parser.add_argument("--slowdown", type=real(0), default=0.0, metavar="X", help="allowed slowdown: 0.01 is one percent (default: 0)")
    parser.add_argument(
        "--straggler", type=real(1), default=1.0, metavar="X", help="how much longer another replica takes than this baseline (default: 1)"
    )


def schedule_of(args: argparse.Namespace) -> Schedule:
    """The schedule that the options describe.

    Raises:
        UserError: sizes that Megatron would refuse.
    """
    if args.group_size is not None and args.chunks == 1:
        raise UserError("--group-size needs --chunks of at least 2: without chunks there is nothing to group")
    p2p: P2pMode = args.p2p or ("overlap" if args.chunks > 1 else "ideal")
    return Schedule(args.pipeline, args.microbatches, args.chunks, args.group_size, p2p, args.warmup_flush)


@dataclass(frozen=True)
class Job:
    """A profile on a schedule, and the problem they make.

    Attributes:
        schedule: the schedule that the graph was built from.
        profile: as measured, or with further clocks.
        problem: graph, tables and deadline.
        measured_mhz: clocks that the profile measured for every operation.
    """

    schedule: Schedule
    profile: Profile
    problem: Problem
    measured_mhz: tuple[int, ...]

    def at_clocks(self, clocks_mhz: Iterable[int]) -> "Job":
        """The same with further clocks, interpolated between the measured ones; those outside of their range are left out."""
        wanted = sorted({*clocks_mhz, *self.measured_mhz})
        tables = build_tables(self.problem.graph, interpolate_profile(self.profile, wanted), self.schedule.chunks)
        return dataclasses.replace(self, problem=dataclasses.replace(self.problem, tables=tables))

    def unmeasured(self, clocks_mhz: Iterable[int]) -> tuple[int, ...]:
        """Those of ``clocks_mhz`` that were not measured, lowest first."""
        return tuple(sorted(set(clocks_mhz) - set(self.measured_mhz)))


def job_of(
    args: argparse.Namespace,
    schedule: Schedule,
    gpus_per_unit: int,
    *,
    slowdown: float,
    straggler: float,
    blocking_power_w: float | None = None,
) -> Job:
    """Load the profile and set up the problem.

    Args:
        args: what :func:`add_profile_options` parsed.
        schedule: the schedule.
        gpus_per_unit: GPUs per pipeline stage.
        slowdown: permitted, 0.01 is one percent.
        straggler: how much longer than the baseline another replica takes, 1 or more.
        blocking_power_w: for want of a figure in the options and in the profile.

    Raises:
        UserError: a profile that does not fit, or no blocking power.
    """
    profile = load_profile(args.profile, args.profile_scale)
    graph = build_graph(
        schedule,
        transfer_s=transfer_time_s(profile),
        grad_sync=has_instruction(profile, "grad-sync"),
        optimizer=has_instruction(profile, "optimizer"),
    )
    tables = build_tables(graph, profile, schedule.chunks)
    problem = Problem(graph, tables, _blocking_power_w(args, profile, blocking_power_w), gpus_per_unit, slowdown, straggler)
    return Job(schedule, profile, problem, tuple(int(mhz) for mhz in tables.clock_mhz))


def _blocking_power_w(args: argparse.Namespace, profile: Profile, otherwise_w: float | None) -> float:
    if args.blocking_power is not None:
        return float(args.blocking_power)
    if args.gpu is not None:
        from megatron_energy.emulation.catalog import load

        return load(args.gpu).blocking_power_w
    power_w = profile.blocking_power_w if profile.blocking_power_w is not None else otherwise_w
    if power_w is None:
        raise UserError("the profile has no blocking power: give --blocking-power W, or --gpu NAME to take the catalog's")
    return power_w
