"""The planning problem of a whole job whose GPUs may differ: lock-step units of unlike GPUs, replicas of unlike speed, one deadline.

Replicas of one class (:mod:`megatron_energy.planning.replicas`) are planned once: the graph has one replica per class, and its units count
as often as there are GPUs. All replicas end together, at grad sync and optimizer or at the end of the iteration, so the slowest one's
end is everybody's deadline and faster replicas save by slowing down. In place of clocks, the tables have the *joint columns* of
:mod:`megatron_energy.planning.lockstep`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce

import numpy as np

from megatron_energy.errors import UserError
from megatron_energy.parallel.layout import Layout
from megatron_energy.pipeline.build import build_graph
from megatron_energy.pipeline.graph import FloatArray, Graph, IntArray, Unit
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.planning.lockstep import Members
from megatron_energy.planning.plan import Plan
from megatron_energy.planning.problem import TIME_TOLERANCE, Evaluation, Problem
from megatron_energy.planning.replicas import MOST_CLASSES, ReplicaClass, replica_classes
from megatron_energy.planning.requests import chain_columns
from megatron_energy.profiles.ranks import RankProfiles
from megatron_energy.profiles.tables import Tables, build_tables, has_instruction, transfer_time_s


@dataclass(frozen=True)
class JobProblem:
    """A job's problem; n vertices, F clocks, at most S kinds of GPU (*slots*) in a unit.

    Attributes:
        problem: what a policy solves. Its columns are joint ones, its energies those of all GPUs.
        clock_mhz: (F,) clocks that every GPU was measured at, highest first.
        members: per unit of the graph, its GPUs; their operations are the unit's chain.
        columns: per unit, (C, M) joint columns: which clock each kind of GPU has.
        classes: the replicas of the graph.
        alone: the same for every class alone, if there are several: a single replica with the whole job's end as its deadline.
    """

    problem: Problem
    clock_mhz: IntArray
    members: tuple[Members, ...]
    columns: tuple[IntArray, ...]
    classes: tuple[ReplicaClass, ...]
    alone: tuple["JobProblem", ...] = ()

    @cached_property
    def slots(self) -> int:
        """Kinds of GPU in the most mixed unit."""
        return max(len(members.gpus) for members in self.members)

    def ranks(self, unit: int, slot: int) -> tuple[int, ...]:
        """The ranks that one kind of GPU of a unit stands for."""
        where = self.problem.graph.units[unit]
        return self.classes[where.replica].ranks[where.stage][slot]

    def clocks(self, joint: IntArray) -> IntArray:
        """(S, n) clock columns of every kind of GPU, from (n,) joint columns. Units with fewer kinds repeat their last one."""
        result = np.zeros((self.slots, len(joint)), dtype=np.int64)
        for unit, chain in enumerate(self.problem.graph.chains):
            result[:, chain] = self.columns[unit][joint[chain]][:, self._slots(unit)].T
        return result

    def joint(self, clocks: IntArray) -> IntArray:
        """(n,) joint columns that are better than or equal to one clock for all GPUs of a unit, (n,) clock columns."""
        result = np.zeros_like(clocks)
        for unit, chain in enumerate(self.problem.graph.chains):
            instead = self.members[unit].replacements(self.problem.blocking_power_w)
            match = (self.columns[unit][np.newaxis] == instead[:, np.newaxis]).all(axis=2)
            result[chain] = match.argmax(axis=1)[clocks[chain]]
        return result

    def together(self, alone: Sequence[IntArray]) -> IntArray:
        """(n,) joint columns of the whole job, from those of every class alone. Joins, which have no clock, differ between the graphs."""
        result = np.zeros(len(self.problem.graph.vertices), dtype=np.int64)
        for unit, chain in enumerate(self.problem.graph.chains):
            where = self.problem.graph.units[unit]
            other = self.alone[where.replica].problem.graph
            there = other.chains[where.stage]
            result[chain[_working(self.problem.graph, chain)]] = alone[where.replica][there[_working(other, there)]]
        return result

    def evaluate(self, clocks: IntArray) -> Evaluation:
        """Time and energy of all GPUs for (S, n) clock columns, or (n,) where all GPUs of a unit have the same."""
        clocks = np.broadcast_to(clocks, (self.slots, clocks.shape[-1]))
        problem, n = self.problem, clocks.shape[1]
        duration_s, mean_j = np.zeros((n, 1)), np.zeros((n, 1))
        for unit, chain in enumerate(problem.graph.chains):
            kinds = len(self.members[unit].gpus)
            duration_s[chain, 0], mean_j[chain, 0] = self.members[unit].at(clocks[:kinds, chain], problem.blocking_power_w)
        chosen = replace(problem, tables=Tables(np.zeros(1, dtype=np.int64), duration_s, mean_j))
        iteration_s = chosen.iteration_s(np.zeros(n, dtype=np.int64))
        energy_j = problem.energy_j(float(chosen.cost_j.sum()), iteration_s)
        late = max(iteration_s, problem.earliest_horizon_s) / problem.straggler_s - 1
        return Evaluation(iteration_s, energy_j, problem.saved_percent(energy_j), 100 * (0.0 if abs(late) <= TIME_TOLERANCE else late))

    def durations(self, clocks: IntArray) -> FloatArray:
        """(n,) seconds for (S, n) clock columns."""
        result = np.zeros(clocks.shape[1])
        for unit, chain in enumerate(self.problem.graph.chains):
            kinds = len(self.members[unit].gpus)
            result[chain] = self.members[unit].at(clocks[:kinds, chain], self.problem.blocking_power_w)[0]
        return result

    def of_slot(self, slot: int) -> Problem:
        """The same graph with the tables of one kind of GPU of every unit (the last one where there are fewer kinds)."""
        n, clocks = len(self.problem.graph.vertices), len(self.clock_mhz)
        time_s, energy_j = np.zeros((n, clocks)), np.zeros((n, clocks))
        for unit, chain in enumerate(self.problem.graph.chains):
            own = self._slots(unit)[slot]
            time_s[chain], energy_j[chain] = self.members[unit].time_s[own], self.members[unit].energy_j[own]
        return replace(self.problem, tables=Tables(self.clock_mhz, time_s, energy_j), baseline_column=0)

    def planned_clocks(self, plan: Plan) -> IntArray:
        """(S, n) clock columns of a plan.

        Raises:
            UserError: the plan does not fit this job or its clocks.
        """
        graph = self.problem.graph
        result = np.zeros((self.slots, len(graph.vertices)), dtype=np.int64)
        for unit, chain in enumerate(graph.chains):
            for slot, own in enumerate(self._slots(unit)):
                gpus = plan.unit(graph.units[unit].stage, self.ranks(unit, own)[0])
                try:
                    result[slot, chain] = chain_columns(graph, chain, self.clock_mhz, gpus)
                except KeyError as error:
                    raise UserError(f"the plan begins a segment at {error.args[0]}, which this schedule does not have") from error
                except ValueError as error:
                    raise UserError(f"the plan uses {error} MHz, which was not measured on all GPUs") from error
        return result

    def _slots(self, unit: int) -> list[int]:
        last = len(self.members[unit].gpus) - 1
        return [min(slot, last) for slot in range(self.slots)]


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
        most_classes: of replicas, see :func:`~megatron_energy.planning.replicas.replica_classes`.

    Raises:
        UserError: sizes that contradict each other, or a profile that lacks what its GPU runs.
    """
    if layout.pipeline != schedule.stages:
        raise UserError(f"a layout of {layout.pipeline} pipeline stages does not fit a schedule of {schedule.stages}")
    classes = replica_classes(layout, profiles, most_classes)
    graph = _graph(schedule, profiles, len(classes))
    clock_mhz, members = _members(graph, classes, profiles, schedule.chunks)
    choices = [unit.joint_columns(blocking_power_w) for unit in members]
    count = max(map(len, choices))
    columns = [np.concatenate([c, np.repeat(c[-1:], count - len(c), axis=0)]) for c in choices]
    problem = Problem(
        graph,
        _tables(graph, members, columns, blocking_power_w, clock_mhz),
        blocking_power_w,
        slowdown=slowdown,
        straggler=straggler,
        unit_weights=np.array([float(sum(map(len, classes[u.replica].ranks[u.stage]))) for u in graph.units]),
    )
    job = JobProblem(problem, clock_mhz, tuple(members), tuple(columns), tuple(classes))
    if len(classes) == 1:
        return job
    single = _graph(schedule, profiles, 1)
    return replace(job, alone=tuple(_alone(job, single, number) for number in range(len(classes))))


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
        own, to, at = job.members[unit], _working(single, chain), _working(job.problem.graph, job.problem.graph.chains[unit])
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


def _working(graph: Graph, chain: IntArray) -> IntArray:
    """Places in a chain that are no joins."""
    return np.array([place for place, vertex in enumerate(chain.tolist()) if graph.vertices[vertex].kind != "join"], dtype=np.int64)


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
