"""Sets up the planning problem of a job whose GPUs may differ: classes of replicas, a graph, tables of joint columns."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from megatron_energy.errors import UserError
from megatron_energy.parallel.layout import Layout
from megatron_energy.pipeline.build import build_graph
from megatron_energy.pipeline.graph import FloatArray, Graph, IntArray, Unit
from megatron_energy.pipeline.replay import replay
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.planning.job_problem import JobProblem, working
from megatron_energy.planning.lockstep import Members
from megatron_energy.planning.problem import TIME_TOLERANCE, Problem
from megatron_energy.planning.replicas import MOST_CLASSES, ReplicaClass, UnitKind, bundle, replica_classes
from megatron_energy.profiles.ranks import RankProfiles
from megatron_energy.profiles.tables import Tables, build_tables, has_instruction, transfer_time_s


def job_problem(
    schedule: Schedule,
    layout: Layout,
    profiles: RankProfiles,
    blocking_power_w: float,
    *,
    slowdown: float = 0.0,
    straggler: float = 1.0,
    most_classes: int = MOST_CLASSES,
) -> JobProblem:
    """Set up the problem of a job.

    Args:
        schedule: of every replica.
        layout: the ranks; its pipeline size is the schedule's.
        profiles: of every rank.
        blocking_power_w: W of a GPU that waits in communication.
        slowdown: permitted, 0.01 is one percent.
        straggler: how much longer than this job's baseline something else takes that it has to wait for, 1 or more.
        most_classes: of replicas, see :func:`~megatron_energy.planning.replicas.bundle`.

    Raises:
        UserError: sizes that contradict each other, or a profile that lacks what its GPU runs.
    """
    if layout.pipeline != schedule.stages:
        raise UserError(f"a layout of {layout.pipeline} pipeline stages does not fit a schedule of {schedule.stages}")
    found = replica_classes(layout, profiles)
    deadline = (slowdown, straggler)
    single = _graph(schedule, profiles, 1)
    classes, exact = found, None
    if len(found) > most_classes:
        exact = _assembled(schedule, found, profiles, blocking_power_w, deadline, choosing=False)
        classes = bundle(found, profiles, most_classes, _no_slower_than(exact, single))
    job = _assembled(schedule, classes, profiles, blocking_power_w, deadline)
    if len(classes) == 1:
        return replace(job, exact=exact)
    return replace(job, alone=tuple(_alone(job, single, number) for number in range(len(classes))), exact=exact)


def _assembled(
    schedule: Schedule,
    classes: Sequence[ReplicaClass],
    profiles: RankProfiles,
    blocking_power_w: float,
    deadline: tuple[float, float],
    *,
    choosing: bool = True,
) -> JobProblem:
    """The problem of these classes at a (slowdown, straggler); without ``choosing``, only to evaluate plans: it has one joint column."""
    graph = _graph(schedule, profiles, len(classes))
    clock_mhz, members = _members(graph, classes, profiles, schedule.chunks)
    choices = [unit.joint_columns(blocking_power_w) if choosing else np.zeros((1, len(unit.gpus)), dtype=np.int64) for unit in members]
    count = max(map(len, choices))
    columns = [np.concatenate([c, np.repeat(c[-1:], count - len(c), axis=0)]) for c in choices]
    problem = Problem(
        graph,
        _tables(graph, members, columns, blocking_power_w, clock_mhz),
        blocking_power_w,
        slowdown=deadline[0],
        straggler=deadline[1],
        unit_weights=np.array([float(sum(map(len, classes[u.replica].ranks[u.stage]))) for u in graph.units]),
    )
    return JobProblem(problem, clock_mhz, tuple(members), tuple(columns), tuple(classes))


def _no_slower_than(job: JobProblem, single: Graph) -> Callable[[Sequence[UnitKind]], bool]:
    """Whether a replica of some units, all GPUs at their highest clock, is no slower than a job."""
    places = [working(single, chain) for chain in single.chains]
    as_found_s: dict[tuple[int, int], FloatArray] = {}
    for unit, (where, chain) in enumerate(zip(job.problem.graph.units, job.problem.graph.chains, strict=True)):
        times_s = job.members[unit].time_s[:, working(job.problem.graph, chain), 0]
        for (profile, _), time_s in zip(job.classes[where.replica].units[where.stage].members, times_s, strict=True):
            as_found_s[where.stage, profile] = time_s

    def in_time(units: Sequence[UnitKind]) -> bool:
        duration_s = np.zeros(len(single.vertices))
        for stage, unit in enumerate(units):
            slowest_s = np.max([as_found_s[stage, profile] for profile, _ in unit.members], axis=0)
            duration_s[single.chains[stage][places[stage]]] = slowest_s
        return replay(single, duration_s).makespan_s <= job.problem.baseline_s * (1 + TIME_TOLERANCE)

    return in_time


def _graph(schedule: Schedule, profiles: RankProfiles, replicas: int) -> Graph:
    """Graph of so many replicas with the steps that the profiles know."""
    return build_graph(
        schedule,
        transfer_s=max(transfer_time_s(profile) for profile in profiles.profiles),
        grad_sync=any(has_instruction(profile, "grad-sync") for profile in profiles.profiles),
        optimizer=any(has_instruction(profile, "optimizer") for profile in profiles.profiles),
        replicas=replicas,
    )


def _alone(job: JobProblem, single: Graph, number: int) -> JobProblem:
    """One class's replica for itself; everything else is a straggler that it need not outrun."""
    units = [unit for unit, where in enumerate(job.problem.graph.units) if where.replica == number]
    members, columns = [], [job.columns[unit] for unit in units]
    for unit, chain in zip(units, single.chains, strict=True):
        own, to, at = job.members[unit], working(single, chain), working(job.problem.graph, job.problem.graph.chains[unit])
        time_s, energy_j = (np.zeros((len(part), len(chain), part.shape[2])) for part in (own.time_s, own.energy_j))
        time_s[:, to], energy_j[:, to] = own.time_s[:, at], own.energy_j[:, at]
        members.append(Members(time_s, energy_j, own.gpus))
    weights = np.ones(len(job.columns)) if job.problem.unit_weights is None else job.problem.unit_weights
    problem = replace(
        job.problem,
        graph=single,
        tables=_tables(single, members, columns, job.problem.blocking_power_w, job.clock_mhz),
        unit_weights=weights[units],
        straggler=1.0,
    )
    waits = replace(problem, straggler=max(1.0, job.problem.straggler_s / problem.baseline_s))
    return JobProblem(waits, job.clock_mhz, tuple(members), tuple(columns), (job.classes[number],))


def _members(graph: Graph, classes: Sequence[ReplicaClass], profiles: RankProfiles, chunks: int) -> tuple[IntArray, list[Members]]:
    """(common clocks, members of every unit)."""
    kinds = [classes[unit.replica].units[unit.stage].members for unit in graph.units]
    tables = [[_unit_tables(graph, unit, profiles, index, chunks) for index, _ in kinds[unit]] for unit in range(len(graph.units))]
    grids = [table.clock_mhz for unit in tables for table in unit]
    clocks = reduce(np.intersect1d, grids, grids[0])[::-1]  # also sorts where there is one
    if not len(clocks):
        raise UserError("the GPUs were not measured at any common clock: measure all of them at the same clocks")
    members = []
    for unit, found in enumerate(tables):
        at = [len(t.clock_mhz) - 1 - np.searchsorted(t.clock_mhz[::-1], clocks) for t in found]
        time_s = np.stack([t.time_s[:, columns] for t, columns in zip(found, at, strict=True)])
        energy_j = np.stack([t.energy_j[:, columns] for t, columns in zip(found, at, strict=True)])
        members.append(Members(time_s, energy_j, np.array([count for _, count in kinds[unit]], dtype=np.int64)))
    return clocks.astype(np.int64), members


def _unit_tables(graph: Graph, unit: int, profiles: RankProfiles, index: int, chunks: int) -> Tables:
    """What the operations of one unit cost on GPUs of one profile."""
    chain = graph.chains[unit]
    alone = tuple(replace(graph.vertices[vertex], unit=0) for vertex in chain.tolist())
    stage = Unit(graph.units[unit].stage)
    part = Graph((stage,), alone, np.zeros((0, 2), dtype=np.int64), np.zeros(0), (np.arange(len(chain), dtype=np.int64),))
    return build_tables(part, profiles.profiles[index], chunks)


def _tables(graph: Graph, members: Sequence[Members], columns: Sequence[IntArray], blocking_power_w: float, clock_mhz: IntArray) -> Tables:
    """Tables over joint columns. Where units have unlike GPUs, a column has no one clock: the columns are numbered instead."""
    count = len(columns[0])
    time_s, energy_j = np.zeros((len(graph.vertices), count)), np.zeros((len(graph.vertices), count))
    for chain, unit, choices in zip(graph.chains, members, columns, strict=True):
        time_s[chain], energy_j[chain] = unit.cost(choices, blocking_power_w)
    alike = count == len(clock_mhz) and all(len(unit.gpus) == 1 for unit in members)
    return Tables(clock_mhz if alike else np.arange(count, 0, -1), time_s, energy_j)
