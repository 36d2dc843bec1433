"""The planning problem of a whole job whose GPUs may differ: lock-step units of unlike GPUs, replicas of unlike speed, one deadline.

Replicas of one class (:mod:`megatron_energy.planning.replicas`) are planned once: the graph has one replica per class, and its units count
as often as there are GPUs. All replicas end together, at grad sync and optimizer or at the end of the iteration, so the slowest one's
end is everybody's deadline and faster replicas save by slowing down. In place of clocks, the tables have the *joint columns* of
:mod:`megatron_energy.planning.lockstep`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from megatron_energy.errors import UserError
from megatron_energy.pipeline.graph import FloatArray, Graph, IntArray
from megatron_energy.planning.lockstep import Members
from megatron_energy.planning.plan import Plan
from megatron_energy.planning.problem import TIME_TOLERANCE, Evaluation, Problem
from megatron_energy.planning.replicas import ReplicaClass
from megatron_energy.planning.requests import chain_columns
from megatron_energy.profiles.tables import Tables


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
        exact: where classes that differ had to be joined, the job as it is, to evaluate plans on.
    """

    problem: Problem
    clock_mhz: IntArray
    members: tuple[Members, ...]
    columns: tuple[IntArray, ...]
    classes: tuple[ReplicaClass, ...]
    alone: tuple["JobProblem", ...] = ()
    exact: "JobProblem | None" = None

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
            result[chain[working(self.problem.graph, chain)]] = alone[where.replica][there[working(other, there)]]
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


def working(graph: Graph, chain: IntArray) -> IntArray:
    """Places in a chain that are no joins."""
    return np.array([place for place, vertex in enumerate(chain.tolist()) if graph.vertices[vertex].kind != "join"], dtype=np.int64)
