import pytest
from hypothesis import given, settings

from megatron_energy.pipeline.order import backward_order, forward_order, operations, roles, warmup_count
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.records.steps import Compute
from tests.pipeline.schedules import schedules

CASES = settings(derandomize=True, deadline=None, max_examples=80)


def text(order):
    """F0.1 is the forward of chunk 0 for microbatch 1."""
    return " ".join(f"{o.kind[0].upper()}{o.chunk}.{o.microbatch}" for o in order)


def test_plain_pipeline():
    schedule = Schedule(2, 3)
    assert text(operations(schedule, 0)) == "F0.0 F0.1 B0.0 F0.2 B0.1 B0.2"
    assert roles(schedule, 0) == ["warm-up", "steady", "steady", "steady", "steady", "cool-down"]
    assert text(operations(schedule, 1)) == "F0.0 B0.0 F0.1 B0.1 F0.2 B0.2"
    assert roles(schedule, 1) == ["steady"] * 6


def test_no_pipeline():
    schedule = Schedule(1, 2)
    assert text(operations(schedule, 0)) == "F0.0 B0.0 F0.1 B0.1"
    assert roles(schedule, 0) == ["steady"] * 4


def test_more_stages_than_microbatches():
    schedule = Schedule(4, 2)
    assert [warmup_count(schedule, stage) for stage in range(4)] == [2, 2, 1, 0]
    assert text(operations(schedule, 0)) == "F0.0 F0.1 B0.0 B0.1"
    assert roles(schedule, 0) == ["warm-up", "warm-up", "cool-down", "cool-down"]


def test_interleaving_takes_groups_of_microbatches_and_a_smaller_last_group():
    schedule = Schedule(2, 5, chunks=2, group_size=3)
    assert text(forward_order(schedule)) == "F0.0 F0.1 F0.2 F1.0 F1.1 F1.2 F0.3 F0.4 F1.3 F1.4"
    assert text(backward_order(schedule)) == "B1.0 B1.1 B1.2 B0.0 B0.1 B0.2 B1.3 B1.4 B0.3 B0.4"


def test_interleaved_pipeline():
    schedule = Schedule(2, 4, chunks=2)
    assert text(operations(schedule, 0)) == "F0.0 F0.1 F1.0 F1.1 F0.2 B1.0 F0.3 B1.1 F1.2 B0.0 F1.3 B0.1 B1.2 B1.3 B0.2 B0.3"
    assert roles(schedule, 0) == ["warm-up"] * 4 + ["steady"] * 8 + ["cool-down"] * 4
    assert text(operations(schedule, 1)).startswith("F0.0 F0.1 F1.0 B1.0 F1.1 B1.1")


@pytest.mark.parametrize(
    ("schedule", "counts"),
    [
        (Schedule(4, 8, chunks=2), [10, 8, 6, 4]),
        (Schedule(4, 4, chunks=2), [8, 8, 6, 4]),  # stage 0 would like 10, but there are only 8 forwards
        (Schedule(4, 16, chunks=3, group_size=8), [22, 20, 18, 16]),
        (Schedule(4, 8, chunks=2, forward_only=True), [16, 16, 16, 16]),
        (Schedule(4, 8, forward_only=True), [3, 2, 1, 0]),
    ],
)
def test_warmup_counts(schedule, counts):
    assert [warmup_count(schedule, stage) for stage in range(4)] == counts


def test_evaluation_runs_forwards_only():
    assert text(operations(Schedule(2, 3, forward_only=True), 0)) == "F0.0 F0.1 F0.2"
    assert roles(Schedule(2, 3, forward_only=True), 0) == ["warm-up", "steady", "steady"]


def test_unknown_stage():
    with pytest.raises(IndexError):
        operations(Schedule(2, 2), 2)


@CASES
@given(schedules())
def test_every_operation_runs_once_and_backwards_follow_their_forwards(schedule):
    kinds = ["forward"] if schedule.forward_only else ["forward", "backward"]
    everything = {Compute(k, c, m) for k in kinds for c in range(schedule.chunks) for m in range(schedule.microbatches)}
    for stage in range(schedule.stages):
        order = operations(schedule, stage)
        assert len(order) == len(everything)
        assert set(order) == everything
        place = {operation: i for i, operation in enumerate(order)}
        for operation in order:
            if operation.kind == "backward":
                assert place[Compute("forward", operation.chunk, operation.microbatch)] < place[operation]


@CASES
@given(schedules())
def test_roles_come_in_three_blocks(schedule):
    for stage in range(schedule.stages):
        warmup = warmup_count(schedule, stage)
        cooldown = 0 if schedule.forward_only else warmup
        count = len(operations(schedule, stage))
        steady = count - warmup - cooldown
        assert roles(schedule, stage) == ["warm-up"] * warmup + ["steady"] * steady + ["cool-down"] * cooldown
