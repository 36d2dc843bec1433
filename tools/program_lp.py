"""The bound once more, by another way: SciPy's HiGHS on every post and wait of the programs, at every measured clock.

The planner's own program has a graph of which joins were contracted and implied edges dropped, and the convex hull of each curve. Nothing
of that is used here. A variable is the end of an operation or of a wait; each comes after the one before it on its stage, and a wait after
both posts of its transfer. In mode ideal there are no posts: an operation comes after the one that makes its input.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from megatron_energy.pipeline.programs import program
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.planning.problem import Problem
from megatron_energy.records.steps import Compute, Post, Wait

FAR_END = {"send_next": ("recv_prev", 1), "recv_prev": ("send_next", -1), "send_prev": ("recv_next", -1), "recv_next": ("send_prev", 1)}


@dataclass
class Events:
    """Operations and waits of all stages.

    Attributes:
        before: (a, b, operation): event b ends after event a, and after its operation's time where it has one (-1: it has none).
        operations: events that are operations, by (stage, kind, chunk, microbatch).
        last: the last event of every stage.
    """

    before: list[tuple[int, int, int]] = field(default_factory=list)
    operations: dict[tuple[int, str, int, int], int] = field(default_factory=dict)
    last: list[int] = field(default_factory=list)
    count: int = 0

    def event(self) -> int:
        """A new one."""
        self.count += 1
        return self.count - 1


def events_of(schedule: Schedule) -> Events:
    """Event 0 is the begin of the iteration."""
    found = Events()
    begin = found.event()
    posts: dict[tuple[int, str, int], int] = {}
    waits: list[tuple[int, int, Wait]] = []
    for stage in range(schedule.stages):
        at = begin
        for step in program(schedule, stage):
            if isinstance(step, Post):
                posts[stage, step.transfer, step.index] = at
                continue
            event = found.event()
            if isinstance(step, Compute):
                found.operations[stage, step.kind, step.chunk, step.microbatch] = event
                found.before.append((at, event, event))
            elif isinstance(step, Wait):
                found.before.append((at, event, -1))
                waits.append((stage, event, step))
            at = event
        found.last.append(at)
    for stage, event, wait in waits:
        name, distance = FAR_END[wait.transfer]
        for place in ((stage, wait.transfer, wait.index), ((stage + distance) % schedule.stages, name, wait.index)):
            found.before.append((posts[place], event, -1))
    if schedule.p2p == "ideal":
        _data(found, schedule)
    return found


def _data(found: Events, schedule: Schedule) -> None:
    """Every operation comes after the one that makes its input: the model's parts stand in a row, chunk after chunk over all stages."""
    stages, parts = schedule.stages, schedule.stages * schedule.chunks
    for (stage, kind, chunk, microbatch), event in found.operations.items():
        part = chunk * stages + stage
        source = part - 1 if kind == "forward" else part + 1
        if 0 <= source < parts:
            maker = found.operations[source % stages, kind, source // stages, microbatch]
        elif kind == "backward":
            maker = found.operations[stage, "forward", chunk, microbatch]
        else:
            continue
        found.before.append((maker, event, event))


def least_energy_j(problem: Problem, schedule: Schedule) -> float:
    """Optimum of the linear program, one GPU per stage.

    Raises:
        RuntimeError: the solver found none.
    """
    found = events_of(schedule)
    row_of = {(problem.graph.units[v.unit].stage, v.kind, v.chunk, v.microbatch): i for i, v in enumerate(problem.graph.vertices)}
    rows = np.array([row_of[place] for place in found.operations])
    time_s, cost_j = problem.tables.time_s[rows], problem.cost_j[rows]
    clocks = time_s.shape[1]
    number = {event: index for index, event in enumerate(found.operations.values())}
    horizon = found.count
    size = found.count + 1 + len(rows) * clocks
    entries: list[tuple[int, int, float]] = []
    for row, (a, b, operation) in enumerate(found.before):
        entries += [(row, a, 1.0), (row, b, -1.0)]
        if operation >= 0:
            index = number[operation]
            entries += [(row, horizon + 1 + index * clocks + f, float(time_s[index, f])) for f in range(clocks)]
    for row, event in enumerate(found.last, start=len(found.before)):
        entries += [(row, event, 1.0), (row, horizon, -1.0)]
    upper = np.full(size, np.inf)
    upper[0], upper[horizon] = 0.0, problem.deadline_s
    lower = np.zeros(size)
    lower[horizon] = problem.earliest_horizon_s
    cost = np.concatenate([np.zeros(horizon), [problem.horizon_power_w], cost_j.ravel()])
    return _solved(cost, _matrix(entries, size), lower, upper, len(rows), clocks, horizon + 1)


def _matrix(entries: list[tuple[int, int, float]], columns: int) -> Any:
    row, column, value = zip(*entries, strict=True)
    return coo_matrix((value, (row, column)), shape=(max(row) + 1, columns)).tocsr()


def _solved(cost: Any, matrix: Any, lower: Any, upper: Any, operations: int, clocks: int, first: int) -> float:
    """Minimise with one mix of clocks per operation, in columns from ``first`` on."""
    shares = coo_matrix(
        (np.ones(operations * clocks), (np.repeat(np.arange(operations), clocks), first + np.arange(operations * clocks))),
        shape=(operations, len(cost)),
    ).tocsr()
    found = linprog(
        cost,
        A_ub=matrix,
        b_ub=np.zeros(matrix.shape[0]),
        A_eq=shares,
        b_eq=np.ones(operations),
        bounds=np.column_stack([lower, upper]),
        method="highs",
    )
    if found.status != 0:
        raise RuntimeError(f"no optimum: {found.message}")
    return float(found.fun)
