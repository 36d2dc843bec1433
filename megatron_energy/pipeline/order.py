"""Megatron's order of operations on every stage, and the role that each operation plays in it.

Example, two stages, two microbatches, one chunk: stage 0 runs F0 F1 B0 B1 (one warm-up forward, one steady pair, one
cool-down backward), stage 1 runs F0 B0 F1 B1 (steady pairs only).
"""

from megatron_energy.pipeline.graph import Role
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.records.steps import Compute


def forward_order(schedule: Schedule) -> list[Compute]:
    """Forwards of one stage in order; it is the same on all stages.

    Interleaved schedules take microbatches in groups: chunk 0 for the whole group, then chunk 1, and so on. The last group
    may be smaller.
    """
    if not schedule.interleaved:
        return [Compute("forward", 0, microbatch) for microbatch in range(schedule.microbatches)]
    order = []
    for first in range(0, schedule.microbatches, schedule.group):
        group = range(first, min(first + schedule.group, schedule.microbatches))
        order += [Compute("forward", chunk, microbatch) for chunk in range(schedule.chunks) for microbatch in group]
    return order


def backward_order(schedule: Schedule) -> list[Compute]:
    """Backwards of one stage in order: the forwards' order with the chunks reversed; empty for evaluation."""
    if schedule.forward_only:
        return []
    return [Compute("backward", schedule.chunks - 1 - f.chunk, f.microbatch) for f in forward_order(schedule)]


def warmup_count(schedule: Schedule, stage: int) -> int:
    """Forwards that ``stage`` runs before its first forward-backward pair.

    An interleaved evaluation is all warm-up; a plain one counts like training (Megatron communicates so). Source: megatron-core,
    pipeline_parallel/schedules.py, get_pp_rank_microbatches.
    """
    _check_stage(schedule, stage)
    total = schedule.microbatches * schedule.chunks
    later_stages = schedule.stages - 1 - stage
    if not schedule.interleaved:
        return min(later_stages, total)
    if schedule.forward_only:
        return total
    return min(2 * later_stages + (schedule.chunks - 1) * schedule.group, total)


def operations(schedule: Schedule, stage: int) -> list[Compute]:
    """Operations of ``stage`` in the order in which Megatron runs them.

    Returns:
        ``2 x microbatches x chunks`` operations (half of them for evaluation).
    """
    return [operation for operation, _ in _with_roles(schedule, stage)]


def roles(schedule: Schedule, stage: int) -> list[Role]:
    """Roles of :func:`operations`, one each: forwards before the first pair warm up, backwards after the last pair cool down."""
    return [role for _, role in _with_roles(schedule, stage)]


def _with_roles(schedule: Schedule, stage: int) -> list[tuple[Compute, Role]]:
    forwards, backwards = forward_order(schedule), backward_order(schedule)
    warmup = warmup_count(schedule, stage)
    order: list[tuple[Compute, Role]] = [(forward, "warm-up") for forward in forwards[:warmup]]
    for k, forward in enumerate(forwards[warmup:]):
        order.append((forward, "steady"))
        order += [(backward, "steady") for backward in backwards[k : k + 1]]
    pairs = len(forwards) - warmup
    order += [(backward, "cool-down") for backward in backwards[pairs:]]
    return order


def _check_stage(schedule: Schedule, stage: int) -> None:
    if not 0 <= stage < schedule.stages:
        raise IndexError(f"stage {stage} of a pipeline of {schedule.stages} stages")
