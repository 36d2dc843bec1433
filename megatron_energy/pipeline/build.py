"""Builds the dependency graph of one iteration from the programs of all stages.

A transfer is complete ``transfer_s`` after both its send and its receive are posted; a step is posted when its stage has
finished what precedes it. Waits become zero-length joins, which disappear again where direct edges are no more in number.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from megatron_energy.errors import UserError
from megatron_energy.pipeline.draft import Draft
from megatron_energy.pipeline.graph import Graph, Role, Unit, Vertex, VertexKind
from megatron_energy.pipeline.levels import CycleError
from megatron_energy.pipeline.order import roles
from megatron_energy.pipeline.programs import program
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.records.steps import Compute, GradSync, Optimizer, Post, Program, Transfer, Wait

MEETS: Mapping[Transfer, tuple[Transfer, int]] = {
    "send_next": ("recv_prev", 1),
    "recv_prev": ("send_next", -1),
    "send_prev": ("recv_next", -1),
    "recv_next": ("send_prev", 1),
}
"""Per transfer: what the other stage calls it, and how many stages further the other stage is (modulo the pipeline)."""


def build_graph(
    schedule: Schedule, *, transfer_s: float = 0.0, grad_sync: bool = False, optimizer: bool = False, replicas: int = 1
) -> Graph:
    """Dependency graph of one iteration of ``replicas`` data-parallel pipelines.

    Args:
        schedule: the schedule; its ``p2p`` decides how transfers constrain the order of events. ``ideal`` has data edges only.
        transfer_s: seconds from the moment both ends are ready until a transfer is complete.
        grad_sync: add a vertex per unit that starts when the same stage of all replicas is ready for it.
        optimizer: add a vertex per unit that starts when all units are ready for it (global gradient norm).
        replicas: data-parallel pipelines; they meet at grad sync and optimizer only.

    Returns:
        Units are ordered by replica, then stage; vertices by unit, then order of execution. Each chain's operations are
        :func:`~megatron_energy.pipeline.order.operations` of its stage.

    Raises:
        UserError: the program would never end, or ``replicas`` or ``transfer_s`` make no sense.
    """
    if replicas < 1:
        raise UserError(f"replicas must be at least 1, not {replicas}")
    if transfer_s < 0:
        raise UserError(f"the transfer time must not be negative, but is {transfer_s} s")
    stages = range(schedule.stages)
    draft = draft_of(
        [program(schedule, stage, grad_sync=grad_sync, optimizer=optimizer) for stage in stages],
        [roles(schedule, stage) for stage in stages],
        transfer_s,
    )
    if schedule.p2p == "ideal":
        connect_data(draft, schedule, transfer_s)
    try:
        draft.check_acyclic()
    except CycleError as error:
        raise UserError(f"this schedule never ends: Megatron would deadlock ({error}); use another p2p mode or other sizes") from error
    draft.contract_joins()
    draft.drop_implied_edges()
    draft = replicate(draft, replicas)
    couple(draft, schedule.stages, replicas)
    draft.contract_joins()
    draft.drop_implied_edges()
    return draft.finish(tuple(Unit(stage, replica) for replica in range(replicas) for stage in stages))


def draft_of(programs: Sequence[Program], role_lists: Sequence[Sequence[Role]], transfer_s: float) -> Draft:
    """One pipeline: operations in order, a join per wait (waits in a row share one).

    Args:
        programs: one per stage.
        role_lists: per stage, the roles of its operations.
        transfer_s: seconds a transfer takes once both ends have posted it.

    Raises:
        ValueError: a wait for a transfer that the other stage never posts.
    """
    draft = Draft(chains=[[] for _ in programs])
    posts: dict[tuple[int, Transfer, int], int | None] = {}  # the last vertex before the post; None: start of the iteration
    waits: list[tuple[int, int, Wait]] = []  # join, stage, step
    for stage, (steps, stage_roles) in enumerate(zip(programs, role_lists, strict=True)):
        current: int | None = None
        upcoming = iter(stage_roles)
        previous_step = None
        for step in steps:
            if isinstance(step, Post):
                posts[stage, step.transfer, step.index] = current
            elif isinstance(step, Wait):
                if current is None or not isinstance(previous_step, Wait):
                    current = draft.add(Vertex(stage, "join"), current)
                waits.append((current, stage, step))
            else:
                vertex = _vertex(step, stage, upcoming)
                current = current if vertex is None else draft.add(vertex, current)
            previous_step = step
    for join, stage, wait in waits:
        other_name, distance = MEETS[wait.transfer]
        other_stage = (stage + distance) % len(programs)
        for end in ((stage, wait.transfer, wait.index), (other_stage, other_name, wait.index)):
            if end not in posts:
                raise ValueError(f"stage {stage} waits for {wait}, but stage {end[0]} never posts its {end[1]} {end[2]}")
            posted_after = posts[end]
            if posted_after is not None:
                draft.connect(posted_after, join, transfer_s)
    return draft


def _vertex(step: object, stage: int, upcoming: Iterable[Role]) -> Vertex | None:
    """The vertex of a step that takes time; None for steps that only mark a point."""
    match step:
        case Compute(kind, chunk, microbatch):
            return Vertex(stage, kind, chunk, microbatch, next(iter(upcoming)))
        case GradSync():
            return Vertex(stage, "grad-sync", role="grad-sync")
        case Optimizer():
            return Vertex(stage, "optimizer", role="optimizer")
        case _:
            return None


def connect_data(draft: Draft, schedule: Schedule, transfer_s: float) -> None:
    """Edges from every forward and backward to the one that uses its result on another stage."""
    at = {(v.kind, v.unit, v.chunk, v.microbatch): number for number, v in enumerate(draft.vertices)}
    last_stage, last_chunk = schedule.stages - 1, schedule.chunks - 1
    for (kind, stage, chunk, microbatch), number in at.items():
        source: tuple[VertexKind, int, int, int] | None = None
        if kind == "forward" and (stage > 0 or chunk > 0):
            source = (kind, stage - 1, chunk, microbatch) if stage > 0 else (kind, last_stage, chunk - 1, microbatch)
        elif kind == "backward" and (stage < last_stage or chunk < last_chunk):
            source = (kind, stage + 1, chunk, microbatch) if stage < last_stage else (kind, 0, chunk + 1, microbatch)
        if source is not None:
            draft.connect(at[source], number, transfer_s)


def replicate(draft: Draft, replicas: int) -> Draft:
    """``replicas`` copies without edges between them."""
    stages, size = len(draft.chains), len(draft.vertices)
    copies = Draft()
    for replica in range(replicas):
        offset = replica * size
        copies.vertices += [replace(v, unit=v.unit + replica * stages) for v in draft.vertices]
        copies.before += [{a + offset: lag for a, lag in before.items()} for before in draft.before]
        copies.after += [{b + offset: lag for b, lag in after.items()} for after in draft.after]
        copies.chains += [[n + offset for n in chain] for chain in draft.chains]
    return copies


def couple(draft: Draft, stages: int, replicas: int) -> None:
    """Let grad-sync vertices of one stage start together, and all optimizer vertices."""
    for stage in range(stages):
        meet(draft, "grad-sync", [stage + replica * stages for replica in range(replicas)])
    meet(draft, "optimizer", list(range(stages * replicas)))


def meet(draft: Draft, kind: VertexKind, units: Sequence[int]) -> None:
    """Insert a join on the first unit: whatever precedes the vertices of this kind on ``units`` precedes all of them."""
    members = [number for unit in units for number in draft.chains[unit] if draft.vertices[number].kind == kind]
    if len(members) < 2:
        return
    chain = draft.chains[units[0]]
    join = draft.add(Vertex(units[0], "join"))
    chain.insert(chain.index(members[0]), chain.pop())
    for member in members:
        for a, lag_s in list(draft.before[member].items()):
            draft.connect(a, join, lag_s)
            del draft.before[member][a], draft.after[a][member]
        draft.connect(join, member)
