"""EnvPipe's schedule: plain 1F1B in which a stage runs further forwards before its first backward.

Bubbles then come right after operations that can be stretched. It costs memory: each further forward keeps its activations. Stock
Megatron-core has no such schedule, so these plans are for comparison only. EnvPipe sends without waiting; the graph has data edges only.
"""

from collections.abc import Sequence

import numpy as np

from megatron_energy.errors import UserError
from megatron_energy.pipeline.build import connect_data, couple, draft_of
from megatron_energy.pipeline.graph import Graph, IntArray, Role, Unit
from megatron_energy.pipeline.order import backward_order, forward_order, warmup_count
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.planning.envpipe import least_energy_columns, outer_envelope
from megatron_energy.planning.problem import Evaluation, Problem
from megatron_energy.profiles.tables import Tables
from megatron_energy.records.steps import Compute, GradSync, Optimizer, Program


def extra_forwards(problem: Problem, memory_forwards: int | None = None) -> list[int]:
    """Further warm-up forwards r_s of every stage, non-increasing over the stages.

    r_s is how many forwards at f* fit into the backwards at the highest clock of the stages after s (EnvPipe, section 4), at most what
    memory and the microbatches allow; 0 for the last stage. The published code then gives no stage more than the one before it, unless that
    one already runs all its forwards first.

    Args:
        problem: of plain 1F1B, one replica.
        memory_forwards: further forwards whose activations fit into a stage's memory; None: as many as are useful.

    Raises:
        UserError: not plain 1F1B, or a negative limit.
    """
    outer_envelope(problem)  # for its check
    if memory_forwards is not None and memory_forwards < 0:
        raise UserError(f"a stage cannot keep {memory_forwards} further forwards: give zero or more")
    least = least_energy_columns(problem, "iteration")
    stages, microbatches = len(problem.graph.units), _microbatches(problem.graph)
    extra = []
    for stage in range(stages):
        forward, backward = (_first(problem.graph, stage, kind) for kind in ("forward", "backward"))
        later = stages - 1 - stage
        time_s = problem.tables.time_s
        fit = int(time_s[backward, problem.baseline_column] * later / time_s[forward, least[forward]])
        limits = [fit, microbatches - (later + 1), *([] if memory_forwards is None else [memory_forwards])]
        extra.append(max(0, min(limits)) if later else 0)
    for stage in range(stages - 1):
        if extra[stage] < extra[stage + 1] and extra[stage] + stages - stage != microbatches:
            extra[stage + 1] = extra[stage]
    return extra


def with_extra_forwards(problem: Problem, extra: Sequence[int], transfer_s: float = 0.0) -> Problem:
    """The same operations in EnvPipe's order. Its baseline is its own; use :func:`against` to compare with the plain schedule.

    Args:
        problem: of plain 1F1B, one replica.
        extra: further warm-up forwards of every stage.
        transfer_s: seconds until a result has reached the next stage.

    Raises:
        UserError: several replicas, not one number per stage, or an order in which stages wait for each other.
    """
    old = problem.graph
    stages, microbatches = len(old.units), _microbatches(old)
    if any(unit.replica for unit in old.units) or [unit.stage for unit in old.units] != list(range(stages)) or len(extra) != stages:
        raise UserError(f"EnvPipe's schedule needs one replica and one number of further forwards per stage ({stages}), not {len(extra)}")
    schedule = Schedule(stages, microbatches, p2p="ideal")
    tail = [step for kind, step in (("grad-sync", GradSync()), ("optimizer", Optimizer())) if any(v.kind == kind for v in old.vertices)]
    orders = [_order(schedule, stage, more) for stage, more in enumerate(extra)]
    programs: list[Program] = [[*(operation for operation, _ in order), *tail] for order in orders]
    draft = draft_of(programs, [[role for _, role in order] for order in orders], transfer_s)
    connect_data(draft, schedule, transfer_s)
    draft.check_acyclic()
    couple(draft, stages, 1)
    draft.contract_joins()
    draft.drop_implied_edges()
    graph = draft.finish(tuple(Unit(stage) for stage in range(stages)))
    row = {(v.unit, v.kind, v.microbatch): i for i, v in enumerate(old.vertices)}
    rows = np.array([row.get((v.unit, v.kind, v.microbatch), -1) for v in graph.vertices], dtype=np.int64)
    joined = (rows < 0)[:, np.newaxis]
    tables = Tables(
        problem.tables.clock_mhz,
        np.where(joined, 0.0, problem.tables.time_s[rows]),
        np.where(joined, 0.0, problem.tables.energy_j[rows]),
    )
    return Problem(
        graph,
        tables,
        problem.blocking_power_w,
        problem.gpus_per_unit,
        problem.slowdown,
        problem.straggler,
        problem.baseline_column,
    )


def against(plain: Problem, other: Problem, clocks: IntArray) -> Evaluation:
    """What clocks of ``other`` cost, compared with the baseline of the plain schedule."""
    iteration_s = other.iteration_s(clocks)
    energy_j = plain.energy_j(other.effective_j(clocks), iteration_s)
    late = max(iteration_s, plain.earliest_horizon_s) / plain.straggler_s - 1
    return Evaluation(iteration_s, energy_j * plain.gpus_per_unit, plain.saved_percent(energy_j), 100 * late)


def _order(schedule: Schedule, stage: int, extra: int) -> list[tuple[Compute, Role]]:
    forwards, backwards = forward_order(schedule), backward_order(schedule)
    warmup = min(warmup_count(schedule, stage) + extra, len(forwards))
    order: list[tuple[Compute, Role]] = [(forward, "warm-up") for forward in forwards[:warmup]]
    for forward, backward in zip(forwards[warmup:], backwards, strict=False):
        order += [(forward, "steady"), (backward, "steady")]
    return order + [(backward, "cool-down") for backward in backwards[len(forwards) - warmup :]]


def _microbatches(graph: Graph) -> int:
    return 1 + max(v.microbatch for v in graph.vertices)


def _first(graph: Graph, unit: int, kind: str) -> int:
    return next(int(v) for v in graph.chains[unit] if graph.vertices[int(v)].kind == kind)
