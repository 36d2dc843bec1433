import pytest
from hypothesis import given, settings

from megatron_energy.pipeline.match import CANDIDATES, ScheduleMismatch, candidates, match, possible_modes
from megatron_energy.pipeline.programs import program
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.records.steps import ClockRequest, GradSync, GradSyncStart, Optimizer, Wait
from tests.pipeline.schedules import schedules


def programs(schedule):
    return [program(schedule, stage) for stage in range(schedule.stages)]


@pytest.mark.parametrize(("p2p", "flush"), CANDIDATES)
def test_each_mode_of_an_interleaved_schedule_is_recognized(p2p, flush):
    schedule = Schedule(4, 8, 2, p2p=p2p, warmup_flush=flush)
    assert match(programs(schedule), Schedule(4, 8, 2)) == schedule


def test_what_is_no_operation_and_no_transfer_is_ignored():
    schedule = Schedule(4, 8, 2, p2p="overlap-wait")
    recorded = [[ClockRequest(1200), *steps, GradSyncStart(0), GradSync(), Optimizer()] for steps in programs(schedule)]
    assert match(recorded, Schedule(4, 8, 2)) == schedule


@settings(derandomize=True, deadline=None, max_examples=60)
@given(schedules(modes=("overlap", "overlap-wait", "batched")))
def test_the_match_always_prescribes_what_was_recorded(schedule):
    assert programs(match(programs(schedule), schedule)) == programs(schedule)


def test_of_equal_modes_the_first_is_taken():
    assert match(programs(Schedule(4, 8, p2p="batched")), Schedule(4, 8)).p2p == "overlap"


def test_modes_that_megatron_refuses_are_not_tried():
    assert [c.p2p for c in candidates(Schedule(2, 4, 2))] == ["overlap", "overlap-wait", "overlap", "overlap-wait"]
    assert [c.warmup_flush for c in candidates(Schedule(4, 8))] == [False, False, False]


def test_a_mismatch_names_stage_step_and_what_was_expected():
    recorded = programs(Schedule(2, 2))
    recorded[1][1] = Wait("send_prev", 7)
    with pytest.raises(ScheduleMismatch) as caught:
        match(recorded, Schedule(2, 2))
    assert str(caught.value) == (
        "the recorded programs match no known communication mode; closest is mode overlap: stage 1, step 1: "
        "expected Wait(transfer='recv_prev', index=0), found Wait(transfer='send_prev', index=7)"
    )


def test_the_mode_that_agrees_longest_is_called_closest():
    schedule = Schedule(4, 8, 2, p2p="batched")
    recorded = programs(schedule)
    recorded[3].pop()
    with pytest.raises(ScheduleMismatch) as caught:
        match(recorded, Schedule(4, 8, 2))
    closest = caught.value.differences[0]
    assert (closest.schedule, closest.stage, closest.found) == (schedule, 3, None)
    assert "found the end" in str(caught.value)


def test_one_program_per_stage():
    with pytest.raises(ValueError, match="1 programs for 2 stages"):
        match([[]], Schedule(2, 2))


@pytest.mark.parametrize(
    ("overlap", "deallocate", "modes"),
    [
        (True, True, ("overlap", "overlap-wait")),
        (True, False, ("overlap",)),
        (False, True, ("batched",)),
        (False, False, ("batched",)),
    ],
)
def test_modes_that_flags_allow(overlap, deallocate, modes):
    assert possible_modes(overlap_p2p_comm=overlap, deallocate_pipeline_outputs=deallocate) == modes
