"""The program that a schedule prescribes for each stage: operations, point-to-point posts and waits, grad sync, optimizer."""

from megatron_energy.pipeline.interleaved import BatchedProgram
from megatron_energy.pipeline.order import operations
from megatron_energy.pipeline.overlapped import FlushedProgram, OverlappedProgram
from megatron_energy.pipeline.plain import plain_program
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.records.steps import GradSync, Optimizer, Program


def program(schedule: Schedule, stage: int, *, grad_sync: bool = False, optimizer: bool = False) -> Program:
    """Program of ``stage``: exactly the posts and waits that Megatron makes in this communication mode.

    Args:
        schedule: what is run; mode ``ideal`` has operations only.
        stage: pipeline stage.
        grad_sync: end with the gradient reduction.
        optimizer: end with the optimizer step.

    Raises:
        ValueError: grad sync or optimizer asked of an evaluation.
    """
    if schedule.forward_only and (grad_sync or optimizer):
        raise ValueError("an evaluation has neither grad sync nor optimizer")
    steps = _transfers_and_operations(schedule, stage)
    if grad_sync:
        steps.append(GradSync())
    if optimizer:
        steps.append(Optimizer())
    return steps


def _transfers_and_operations(schedule: Schedule, stage: int) -> Program:
    if schedule.p2p == "ideal":
        return list(operations(schedule, stage))
    if not schedule.interleaved:
        return plain_program(schedule, stage)
    if schedule.p2p == "batched":
        return BatchedProgram(schedule, stage).write()
    writer = FlushedProgram if schedule.warmup_flush else OverlappedProgram
    return writer(schedule, stage).write()
