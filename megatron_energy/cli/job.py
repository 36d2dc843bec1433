"""What the planning commands work on: a profile on a schedule. Loaded by the commands when they run: it takes SciPy."""

import argparse
import dataclasses
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from megatron_energy.errors import UserError
from megatron_energy.pipeline.build import build_graph
from megatron_energy.pipeline.graph import Graph
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.planning.problem import Problem
from megatron_energy.profiles.curves import interpolate_profile
from megatron_energy.profiles.files import load_profile
from megatron_energy.profiles.profile import Profile
from megatron_energy.profiles.remarks import remarks
from megatron_energy.profiles.sizes import check_sizes
from megatron_energy.profiles.tables import build_tables, has_instruction, transfer_time_s


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
        profile = interpolate_profile(self.profile, wanted)
        tables = build_tables(self.problem.graph, profile, self.schedule.chunks)
        return dataclasses.replace(self, profile=profile, problem=dataclasses.replace(self.problem, tables=tables))

    def resized(self, microbatches: int) -> Problem:
        """The problem of the same job with another number of microbatches."""
        if microbatches == self.schedule.microbatches:
            return self.problem
        graph = _graph(dataclasses.replace(self.schedule, microbatches=microbatches), self.profile)
        return dataclasses.replace(self.problem, graph=graph, tables=build_tables(graph, self.profile, self.schedule.chunks))

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
        args: what :func:`~megatron_energy.cli.pipeline_options.add_profile_options` parsed.
        schedule: the schedule.
        gpus_per_unit: GPUs per pipeline stage.
        slowdown: permitted, 0.01 is one percent.
        straggler: how much longer than the baseline another replica takes, 1 or more.
        blocking_power_w: for want of a figure in the options and in the profile.

    Raises:
        UserError: a profile that does not fit or has no energy in it, or no blocking power.
    """
    profile = load_profile(args.profile, args.profile_scale)
    check_sizes(profile, schedule.stages, schedule.chunks)
    power_w = blocking_power_of(args, profile, blocking_power_w)
    graph = _graph(schedule, profile)
    tables = build_tables(graph, profile, schedule.chunks)
    problem = Problem(graph, tables, power_w, gpus_per_unit, slowdown, straggler)
    check_baseline(problem, args.profile)
    for remark in remarks(profile, power_w):
        print(f"note: {remark}", file=sys.stderr)
    return Job(schedule, profile, problem, tuple(int(mhz) for mhz in tables.clock_mhz))


def check_baseline(problem: Problem, profile: str) -> None:
    """Refuse a baseline that nothing can be saved from.

    Raises:
        UserError: it uses no energy, or times, energies or powers are so large that they overflow.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # told in one line instead
        finite = math.isfinite(problem.baseline_energy_j) and math.isfinite(problem.baseline_s)
    if not finite:
        raise UserError(f"{profile}: the baseline's time or energy is beyond any number: are times in s, energies in J and powers in W?")
    if not problem.baseline_energy_j > 0:
        raise UserError(f"{profile}: the baseline uses no energy, so nothing can be saved: measure the energies")


def _graph(schedule: Schedule, profile: Profile) -> Graph:
    return build_graph(
        schedule,
        transfer_s=transfer_time_s(profile),
        grad_sync=has_instruction(profile, "grad-sync"),
        optimizer=has_instruction(profile, "optimizer"),
    )


def blocking_power_of(args: argparse.Namespace, profile: Profile, otherwise_w: float | None = None) -> float:
    """Blocking power in W from the options, else the profile, else ``otherwise_w``.

    Raises:
        UserError: none of them has it.
    """
    if args.blocking_power is not None:
        return float(args.blocking_power)
    if args.gpu is not None:
        from megatron_energy.emulation.catalog import load

        return load(args.gpu).blocking_power_w
    power_w = profile.blocking_power_w if profile.blocking_power_w is not None else otherwise_w
    if power_w is None:
        raise UserError("the profile has no blocking power: give --blocking-power W, or --gpu NAME to take the catalog's")
    return power_w
