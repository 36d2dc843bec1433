"""Programs against hand-written ones, and against what unmodified megatron-core was recorded doing.

``recorded/*.json`` hold operations, posts and waits of every stage of runs on CPU and gloo. A step is written ``F1.0`` (forward
of chunk 1 for microbatch 0; ``B`` backward), ``sn3`` (post number 3 of send_next; ``rp`` recv_prev, ``rn`` recv_next, ``sp``
send_prev) or ``Wsn3`` (wait for it). Transfers of one call stand in the order of ``TRANSFERS``.
"""

import json
from pathlib import Path

import pytest

from megatron_energy.pipeline.match import match
from megatron_energy.pipeline.order import operations
from megatron_energy.pipeline.programs import program
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.records.steps import Compute, GradSync, Optimizer, Post, Wait
from tests.pipeline.releases import mode_in

SHORT = {"rp": "recv_prev", "sn": "send_next", "rn": "recv_next", "sp": "send_prev"}


def step(word):
    if word[0] in "FB":
        chunk, microbatch = word[1:].split(".")
        return Compute("forward" if word[0] == "F" else "backward", int(chunk), int(microbatch))
    if word[0] == "W":
        return Wait(SHORT[word[1:3]], int(word[3:]))
    return Post(SHORT[word[:2]], int(word[2:]))


def steps(text):
    return [step(word) for word in text.split()]


def recorded_runs():
    for file in sorted((Path(__file__).parent / "recorded").glob("*.json")):
        content = json.loads(file.read_text())
        for run in content["runs"]:
            p2p = mode_in(content["core"], overlap=run["overlap_p2p_comm"], deallocate=run["deallocate_pipeline_outputs"])
            flush = run["overlap_p2p_comm_warmup_flush"]
            sizes = (run["stages"], run["microbatches"], run["chunks"], run["group_size"])
            schedule = Schedule(*sizes, p2p, flush, run["forward_only"])
            yield pytest.param(schedule, [steps(text) for text in run["programs"]], id=f"{content['core']}-{schedule}")


RUNS = list(recorded_runs())


@pytest.mark.parametrize(("schedule", "recorded"), RUNS)
def test_programs_are_those_that_megatron_ran(schedule, recorded):
    assert [program(schedule, stage) for stage in range(schedule.stages)] == recorded


@pytest.mark.parametrize(("schedule", "recorded"), RUNS)
def test_recorded_runs_are_recognized(schedule, recorded):
    found = match(
        recorded, Schedule(schedule.stages, schedule.microbatches, schedule.chunks, schedule.group, forward_only=schedule.forward_only)
    )
    if schedule.interleaved and not schedule.forward_only:  # otherwise several modes do the same
        assert found == schedule
    assert [program(found, stage) for stage in range(found.stages)] == recorded


def test_recordings_cover_every_mode():
    modes = {(schedule.p2p, schedule.warmup_flush) for schedule, _ in (run.values for run in RUNS) if schedule.interleaved}
    assert modes == {("overlap", False), ("overlap", True), ("overlap-wait", False), ("overlap-wait", True), ("batched", False)}


def test_plain_pipeline_by_hand():
    schedule = Schedule(2, 2)
    assert program(schedule, 0) == steps("F0.0 sn0 Wsn0 F0.1 sn1 rn0 Wsn1 Wrn0 B0.0 rn1 Wrn1 B0.1")
    assert program(schedule, 1) == steps("rp0 Wrp0 F0.0 B0.0 rp1 sp0 Wrp1 Wsp0 F0.1 B0.1 sp1 Wsp1")


def test_sends_are_waited_for_one_operation_later_or_at_once():
    """The first stage of two, between the forward and the backward of its second pair."""
    later = program(Schedule(2, 4, 2, p2p="overlap"), 0)
    at_once = program(Schedule(2, 4, 2, p2p="overlap-wait"), 0)
    assert later[later.index(Post("send_next", 5)) :][:2] == steps("sn5 Wsn4")
    assert at_once[at_once.index(Post("send_next", 5)) :][:2] == steps("sn5 Wsn5")


def test_ideal_programs_have_operations_only():
    schedule = Schedule(4, 8, 2, p2p="ideal")
    assert program(schedule, 1) == operations(schedule, 1)


def test_grad_sync_and_optimizer_come_last():
    assert program(Schedule(1, 1), 0, grad_sync=True, optimizer=True) == [*steps("F0.0 B0.0"), GradSync(), Optimizer()]


@pytest.mark.parametrize("p2p", ["overlap", "overlap-wait", "batched"])
def test_what_a_stage_sends_the_next_one_receives(p2p):
    schedule = Schedule(4, 12, 3, 8, p2p=p2p)
    posts = [[s for s in program(schedule, stage) if isinstance(s, Post)] for stage in range(4)]

    def count(stage, transfer):
        return sum(post.transfer == transfer for post in posts[stage % 4])

    for stage in range(4):
        wrap = 12 if stage == 3 else 0  # the model's last chunk sends nothing on
        assert count(stage, "send_next") == count(stage + 1, "recv_prev") == 36 - wrap
        assert count(stage + 1, "send_prev") == count(stage, "recv_next") == 36 - wrap
