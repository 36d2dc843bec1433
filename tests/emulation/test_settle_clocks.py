"""Clock requests: delay, latency, the driver lock of a node, changes in the middle of an operation, late raises, power cap."""

import pytest

from megatron_energy.emulation.settle import RequestLatency, Wiring
from megatron_energy.records.steps import ClockRequest, Optimizer
from tests.emulation.settling import BLOCKING_W, FULL, HALF, blocking, bwd, fwd, settler, times, workload

ONE = Wiring.grid(1)
LATENCY = RequestLatency(call_s=0.1, lock_s=0.2, in_force_s=0.3)


def test_without_latency_a_request_holds_for_the_next_operation():
    [record] = settler(workload(), ONE).settle([[ClockRequest(HALF), fwd(), ClockRequest(0), fwd(1)]], 0)
    assert times(record) == [("forward", 0, 2), ("forward", 2, 3)]
    assert [span.clock_mhz for span in record.spans] == [HALF, FULL]
    assert all(span.steady_clock for span in record.spans)
    assert record.clock_changes == [(0, HALF), (2, FULL)]
    assert (record.requests, record.late_raises) == (2, 0)


def test_a_clock_that_changes_in_the_middle_slows_the_rest_down():
    # Issued at 0, in force at 0.1 + 0.3 = 0.4: 0.4 of the work is done, the other 0.6 take 1.2 s.
    [record] = settler(workload(), ONE, LATENCY).settle([[ClockRequest(HALF), fwd()]], 0)
    assert times(record) == [("forward", 0, 1.6)]
    [span] = record.spans
    assert not span.steady_clock
    assert span.clock_mhz == pytest.approx((0.4 * FULL + 1.2 * HALF) / 1.6)
    assert record.energy_j == pytest.approx(0.4 * 400 + 1.2 * 200)
    assert record.clock_changes == [(0, FULL), (pytest.approx(0.4), HALF)]


def test_the_delay_runs_from_the_point_in_the_program():
    # The point is reached at 1; issued at 1.5, in force at 1.9, in the middle of the second forward: 0.9 done, 0.1 takes 0.2 s.
    [record] = settler(workload(), ONE, LATENCY).settle([[fwd(), ClockRequest(HALF, delay_s=0.5), fwd(1)]], 0)
    assert times(record) == [("forward", 0, 1), ("forward", 1, 2.1)]


def test_two_changes_in_one_operation():
    # 0-0.5 full (0.5 done), 0.5-0.9 half (0.2 done), then full: 0.3 more.
    program = [ClockRequest(HALF, delay_s=0.5), ClockRequest(FULL, delay_s=0.9), fwd()]
    [record] = settler(workload(), ONE).settle([program], 0)
    assert times(record) == [("forward", 0, 1.2)]
    assert record.energy_j == pytest.approx(0.8 * 400 + 0.4 * 200)


def test_one_member_slows_the_lock_step_group_down():
    # Member 1 falls to half at 0.5: 0.5 of the work remains, for 1 s; member 0 then works half of the time. Requests may differ.
    programs = [[fwd()], [ClockRequest(HALF, delay_s=0.5), fwd()]]
    fast, slow = settler(workload(), Wiring.grid(1, tensor=2)).settle(programs, 0)
    assert times(fast) == times(slow) == [("forward", 0, 1.5)]
    assert fast.energy_j == pytest.approx(0.5 * 400 + 1.0 * (0.5 * 400 + 0.5 * BLOCKING_W))
    assert slow.energy_j == pytest.approx(0.5 * 400 + 1.0 * 200)
    assert fast.spans[0].steady_clock
    assert not slow.spans[0].steady_clock


def test_the_driver_serves_the_gpus_of_a_node_one_after_the_other():
    wiring = Wiring.grid(1, data=3, gpus_per_node=2)
    records = settler(workload(f=2.0), wiring, LATENCY).settle([[ClockRequest(HALF), fwd()]] * 3, 0)
    # Ranks 0 and 1 share a node: the second call begins 0.2 s later. Rank 2 has a node of its own.
    in_force = [record.clock_changes[1][0] for record in records]
    assert in_force == pytest.approx([0.4, 0.6, 0.4])


def test_a_free_driver_makes_nobody_wait():
    wiring = Wiring.grid(1, data=2)
    programs = [[ClockRequest(HALF), fwd()], [ClockRequest(HALF, delay_s=0.5), fwd()]]
    records = settler(workload(f=2.0), wiring, LATENCY).settle(programs, 0)
    assert [record.clock_changes[1][0] for record in records] == pytest.approx([0.4, 0.9])


def test_a_change_while_waiting_shows_in_the_wait():
    programs = [[fwd(), *blocking("send_next")], [ClockRequest(HALF, delay_s=0.75), *blocking("recv_prev"), fwd()]]
    _, second = settler(workload(2), Wiring.grid(2)).settle(programs, 0)
    assert times(second) == [("wait", 0, 1), ("forward", 1, 3)]
    assert second.spans[0].clock_mhz == pytest.approx(0.75 * FULL + 0.25 * HALF)
    assert not second.spans[0].steady_clock


def test_a_request_may_come_into_force_in_the_next_iteration():
    job = settler(workload(), ONE, LATENCY)
    [first] = job.settle([[fwd(), ClockRequest(HALF)]], 0)
    assert first.clock_changes == [(0, FULL)]
    # Issued at 1, in force at 1.4: 0.4 done, the rest takes 1.2 s.
    [second] = job.settle([[fwd()]], 1)
    assert times(second) == [("forward", 1, 2.6)]
    assert second.clock_changes == [(1, FULL), (pytest.approx(1.4), HALF)]
    assert job.gpus[0].pending == []


def test_a_rank_that_ended_early_keeps_its_change_for_its_next_iteration():
    # Rank 0 ends at 1 with a request in force at 1.4; rank 1 works until 2, so the change happens during the first settling.
    job = settler(workload(2), Wiring.grid(2), LATENCY)
    first, second = job.settle([[fwd(), ClockRequest(HALF)], [bwd()]], 0)
    assert (first.end_s, second.end_s) == (1, 2)
    first, _ = job.settle([[fwd()], [fwd()]], 1)
    assert times(first) == [("forward", 1, 2.6)]


def test_requests_are_rounded_down_to_a_supported_clock():
    job = settler(workload(), ONE)
    job.settle([[ClockRequest(HALF + 14), fwd()]], 0)
    assert job.gpus[0].clock_mhz == HALF
    job.settle([[ClockRequest(9999), fwd()]], 1)
    assert job.gpus[0].clock_mhz == FULL


@pytest.mark.parametrize(
    ("delay_s", "ahead", "late"),
    [
        (0.5, None, 0),  # issued at 2.5, in force at 2.9, needed by the forward at 4
        (1.5, None, 0),  # 3.5 -> 3.9
        (1.8, None, 1),  # 3.8 -> 4.2: the second forward has begun at half the clock
        (1.8, 1, 1),  # the same, said outright: one operation may begin before
        (1.8, 2, 0),  # it was meant for the third, at 6 at the earliest
        (0.5, 0, 1),  # it was meant for the operation at 2 itself
    ],
)
def test_late_raises_are_counted(delay_s, ahead, late):
    job = settler(workload(), ONE, LATENCY)
    job.set_clock(0, HALF)
    [record] = job.settle([[fwd(0), ClockRequest(FULL, delay_s, ahead), fwd(1), fwd(2), fwd(3)]], 0)
    assert record.late_raises == late
    # Lowering is never late.
    [record] = job.settle([[fwd(0), ClockRequest(HALF, 0.9, 0), fwd(1), fwd(2)]], 1)
    assert record.late_raises == 0


def test_the_power_cap_holds_the_clock_below_the_request():
    # 400 W at full clock are above 300 W; the simple workload then runs at half.
    [record] = settler(workload(), ONE, limit_w=300.0).settle([[fwd()]], 0)
    assert times(record) == [("forward", 0, 2)]
    [span] = record.spans
    assert (span.clock_mhz, span.throttled, span.steady_clock) == (HALF, True, True)
    assert record.clock_changes == [(0, HALF)]


def test_what_the_sensors_show_is_the_clock_that_ran():
    # 1 s of forward, which the cap halves to 2 s, then 1 s of optimizer at 300 W, which it leaves alone: (2 HALF + 1 FULL) / 3.
    job = settler(workload(opt=1.0), ONE, limit_w=300.0)
    [record] = job.settle([[fwd(), Optimizer()]], 0)
    [gpu] = job.gpus
    assert record.clock_changes == [(0, HALF), (2, FULL)]
    assert gpu.ran_mhz == record.mean_clock_mhz == pytest.approx((2 * HALF + FULL) / 3)
    assert (record.throttled_s, gpu.capped, gpu.clock_mhz) == (2, True, FULL)
    assert gpu.power_w == pytest.approx((2 * 200 + 300) / 3)
    [record] = job.settle([[Optimizer()]], 1)
    assert (record.mean_clock_mhz, gpu.ran_mhz, gpu.capped) == (FULL, FULL, False)


def test_a_power_limit_can_change_between_iterations():
    job = settler(workload(), ONE)
    job.set_power_limit(0, 300.0)
    [record] = job.settle([[fwd()]], 0)
    assert record.spans[0].throttled
    job.set_power_limit(0, 500.0)
    [record] = job.settle([[fwd()]], 1)
    assert not record.spans[0].throttled


def test_latency_comes_from_the_catalog_by_default():
    latency = RequestLatency.of(workload().gpu)
    assert latency == RequestLatency(call_s=0.0045, lock_s=0.00575, in_force_s=0.005)
