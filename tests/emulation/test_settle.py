"""Operations, transfers, lock-step, joins: cases that can be followed by hand."""

import pytest

from megatron_energy.emulation.settle import SettleError, Wiring
from megatron_energy.records.steps import GradSync, GradSyncStart, Optimizer, Post, Wait
from tests.emulation.settling import BLOCKING_W, FULL, HALF, blocking, bwd, fwd, settler, times, workload

ONE = Wiring.grid(1)
TWO_STAGES = Wiring.grid(2)


def test_one_rank_forward_backward():
    [record] = settler(workload(), ONE).settle([[fwd(), bwd()]], iteration=7)
    assert times(record) == [("forward", 0, 1), ("backward", 1, 3)]
    assert record.energy_j == pytest.approx(3 * 400)
    assert (record.iteration, record.rank, record.emulated, record.evaluation) == (7, 0, True, False)
    assert record.clock_changes == [(0.0, FULL)]
    assert all(span.clock_mhz == FULL and span.steady_clock and not span.throttled for span in record.spans)


def test_a_receive_waits_for_the_forward_before():
    programs = [[fwd(), *blocking("send_next")], [*blocking("recv_prev"), fwd()]]
    first, second = settler(workload(2, transfer=0.25), TWO_STAGES).settle(programs, 0)
    # The receive is posted at 0, the send at 1: the tensor is there at 1.25.
    assert times(first) == [("forward", 0, 1), ("wait", 1, 1.25)]
    assert times(second) == [("wait", 0, 1.25), ("forward", 1.25, 2.25)]
    assert second.energy_j == pytest.approx(1.25 * BLOCKING_W + 400)


def test_a_send_waits_for_its_receive():
    # Rank 1 computes before it posts the receive: rank 0, done at 1, is held up until 2.
    programs = [[fwd(), *blocking("send_next")], [bwd(), *blocking("recv_prev")]]
    first, second = settler(workload(2), TWO_STAGES).settle(programs, 0)
    assert times(first) == [("forward", 0, 1), ("wait", 1, 2)]
    assert times(second) == [("backward", 0, 2)]


def test_a_posted_transfer_overlaps_with_work():
    # The transfer runs from 1 to 1.5 while both ranks compute; nobody waits for it.
    first = [fwd(0), Post("send_next", 0), fwd(1), Wait("send_next", 0)]
    second = [Post("recv_prev", 0), bwd(0), Wait("recv_prev", 0), fwd(0)]
    records = settler(workload(2, transfer=0.5), TWO_STAGES).settle([first, second], 0)
    assert times(records[0]) == [("forward", 0, 1), ("forward", 1, 2)]
    assert times(records[1]) == [("backward", 0, 2), ("forward", 2, 3)]


def test_transfers_meet_by_index_and_kind():
    # With two stages the next rank is also the previous one: activations and gradients must not be mixed up.
    first = [fwd(0), *blocking("send_next", 0), fwd(1), *blocking("send_next", 1), *blocking("recv_next", 0), bwd(0)]
    second = [*blocking("recv_prev", 0), fwd(0), bwd(0), Post("send_prev", 0), *blocking("recv_prev", 1), fwd(1)]
    records = settler(workload(2), TWO_STAGES).settle([first, second], 0)
    # Rank 1: forward 1-2, backward 2-4, then posts both; the gradient needs rank 0, which is held up by its second send until 4.
    assert times(records[0]) == [("forward", 0, 1), ("forward", 1, 2), ("wait", 2, 4), ("backward", 4, 6)]
    assert times(records[1]) == [("wait", 0, 1), ("forward", 1, 2), ("backward", 2, 4), ("forward", 4, 5)]


def test_the_last_stage_sends_to_the_first():
    # Interleaved schedules: the next of the last stage is the first, which runs chunk 1.
    first = [fwd(0), *blocking("send_next"), *blocking("recv_prev"), fwd(0, chunk=1)]
    second = [*blocking("recv_prev"), fwd(0), *blocking("send_next")]
    records = settler(workload(2, chunks=2), TWO_STAGES).settle([first, second], 0)
    assert times(records[0]) == [("forward", 0, 1), ("wait", 1, 2), ("forward", 2, 3)]
    assert records[0].spans[-1].chunk == 1


def test_lock_step_runs_at_the_pace_of_the_slowest():
    job = settler(workload(), Wiring.grid(1, tensor=2))
    job.set_clock(1, HALF)
    fast, slow = job.settle([[fwd()], [fwd()]], 0)
    assert times(fast) == times(slow) == [("forward", 0, 2)]
    # The fast one works half the time at 400 W and waits the other half; the slow one draws 200 W throughout.
    assert fast.energy_j == pytest.approx(2 * (0.5 * 400 + 0.5 * BLOCKING_W))
    assert slow.energy_j == pytest.approx(2 * 200)
    assert (fast.spans[0].clock_mhz, slow.spans[0].clock_mhz) == (FULL, HALF)


def test_lock_step_begins_when_all_are_there():
    wiring = Wiring(stage=[0, 0], next_rank=[0, 1], prev_rank=[0, 1], lock_step=[[0, 1]], data_parallel=[[0], [1]], node=[0, 0])
    job = settler(workload(), wiring)
    job.settle([[fwd()], [fwd()]], 0)
    job.gpus[1].time_s += 0.5
    early, late = job.settle([[fwd()], [fwd()]], 1)
    assert times(early) == [("wait", 1, 1.5), ("forward", 1.5, 2.5)]
    assert times(late) == [("forward", 1.5, 2.5)]


def test_grad_sync_joins_the_data_parallel_group():
    job = settler(workload(sync=0.5), Wiring.grid(1, data=2))
    job.set_clock(1, HALF)
    first, second = job.settle([[fwd(), GradSync()]] * 2, 0)
    # Rank 0 is ready at 1, rank 1 at 2; at half the clock the reduction takes 1 s for both.
    assert times(first) == [("forward", 0, 1), ("wait", 1, 2), ("grad-sync", 2, 3)]
    assert times(second) == [("forward", 0, 2), ("grad-sync", 2, 3)]


def test_the_optimizer_joins_all_ranks_then_everyone_takes_its_own_time():
    job = settler(workload(2, opt=0.5), TWO_STAGES)
    job.set_clock(1, HALF)
    first, second = job.settle([[fwd(), Optimizer()]] * 2, 0)
    assert times(first) == [("forward", 0, 1), ("wait", 1, 2), ("optimizer", 2, 2.5)]
    assert times(second) == [("forward", 0, 2), ("optimizer", 2, 3)]
    assert first.energy_j == pytest.approx(400 + BLOCKING_W + 0.5 * 300)


def test_an_overlapped_reduction_runs_beside_the_backward():
    job = settler(workload(chunks=2, sync=1.0), Wiring.grid(1, data=2))
    program = [bwd(0, chunk=1), GradSyncStart(1), bwd(0, chunk=0), GradSync()]
    records = job.settle([program] * 2, 0)
    # Chunk 1 is reduced from 2 to 2.5, beside the second backward; only chunk 0's half remains.
    assert times(records[0]) == [("backward", 0, 2), ("backward", 2, 4), ("grad-sync", 4, 4.5)]


def test_unfinished_overlapped_reductions_hold_the_sync_up():
    job = settler(workload(chunks=2, sync=1.0), Wiring.grid(1, data=2))
    program = [bwd(), GradSyncStart(1), GradSyncStart(0), GradSync()]
    first, second = job.settle([program] * 2, 0)
    # Both halves are reduced one after the other, from 2 to 3; nothing remains for the sync itself.
    assert times(first) == times(second) == [("backward", 0, 2), ("wait", 2, 3)]


def test_state_is_carried_over_iterations():
    job = settler(workload(2), TWO_STAGES)
    programs = [[fwd(0)], [fwd(0), bwd(0)]]
    job.settle(programs, 0)
    first, second = job.settle(programs, 1, evaluation=True)
    # Nothing joins the ranks: each goes on from its own end.
    assert times(first) == [("forward", 1, 2)]
    assert times(second) == [("forward", 3, 4), ("backward", 4, 6)]
    assert [gpu.time_s for gpu in job.gpus] == [2, 6]
    assert [gpu.energy_mj for gpu in job.gpus] == pytest.approx([2 * 400e3, 6 * 400e3])
    assert first.evaluation
    assert first.emulated


def test_a_straggler_takes_longer_and_holds_its_replicas_up():
    job = settler(workload(sync=0.5), Wiring.grid(1, data=2))
    job.set_stretch(1, 1.2)
    first, second = job.settle([[fwd(), GradSync()]] * 2, 0)
    assert times(first) == [("forward", 0, 1), ("wait", 1, 1.2), ("grad-sync", 1.2, 1.7)]
    assert times(second) == [("forward", 0, 1.2), ("grad-sync", 1.2, 1.7)]


def test_a_deadlock_names_ranks_and_steps():
    programs = [[Post("recv_next", 0), Wait("recv_next", 0)], [fwd(), Post("recv_prev", 0), Wait("recv_prev", 0)]]
    with pytest.raises(SettleError, match=r"rank 0 at step 1 Wait\(transfer='recv_next', index=0\), rank 1 at step 2 Wait"):
        settler(workload(2), TWO_STAGES).settle(programs, 0)


def test_a_join_that_not_everyone_reaches_is_a_deadlock():
    with pytest.raises(SettleError, match=r"rank 0 at step 1 Optimizer\(\)$"):
        settler(workload(2), TWO_STAGES).settle([[fwd(), Optimizer()], [fwd()]], 0)


def test_lock_step_ranks_with_different_programs_are_an_error():
    with pytest.raises(SettleError, match="ranks 0 and 1 run together but differ"):
        settler(workload(), Wiring.grid(1, tensor=2)).settle([[fwd(0)], [fwd(1)]], 0)


def test_as_many_programs_as_ranks():
    with pytest.raises(ValueError, match="1 programs for 2 ranks"):
        settler(workload(2), TWO_STAGES).settle([[fwd()]], 0)


def test_an_empty_program_takes_no_time():
    job = settler(workload(), ONE)
    [record] = job.settle([[]], 0)
    assert (record.start_s, record.end_s, record.energy_j, record.spans) == (0, 0, 0, [])


def test_grid_follows_megatrons_order():
    wiring = Wiring.grid(stages=2, tensor=2, data=2, gpus_per_node=4)
    assert list(wiring.stage) == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [list(group) for group in wiring.lock_step] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [list(group) for group in wiring.data_parallel] == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert list(wiring.next_rank) == [4, 5, 6, 7, 0, 1, 2, 3]
    assert list(wiring.node) == [0, 0, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lock_step": [[0], [0]]}, "exactly one lock_step group"),
        ({"data_parallel": [[0, 1]]}, "of one stage"),
        ({"next_rank": [1, 1]}, "not the previous rank"),
        ({"node": [0]}, "1 entries for 2 ranks"),
    ],
)
def test_contradicting_wirings_are_refused(change, message):
    fields = {
        "stage": [0, 1],
        "next_rank": [1, 0],
        "prev_rank": [1, 0],
        "lock_step": [[0], [1]],
        "data_parallel": [[0], [1]],
        "node": [0, 0],
    }
    with pytest.raises(ValueError, match=message):
        Wiring(**(fields | change))
