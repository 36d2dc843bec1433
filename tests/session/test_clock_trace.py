"""Which clock was in force when, from calls and from what was seen."""

import pytest

from megatron_energy.gpus.device import EventReason
from megatron_energy.gpus.errors import GpuError
from megatron_energy.gpus.sampler import Sample
from megatron_energy.session.clock_trace import Change, ClockInForce, ClockTrace, TracedActuator
from tests.emulated_gpus import FakeClock
from tests.gpus.fake_actuator import FakeActuator

TOP_MHZ, IN_FORCE_S = 1410, 0.01
CHANGES = [Change(1.0, 1.005, 1200), Change(2.0, 2.005, 1200), Change(3.0, 3.005, 0)]


def clock(start_s: float, end_s: float, *samples: Sample) -> ClockInForce:
    return ClockTrace(CHANGES, samples, TOP_MHZ, IN_FORCE_S).during(start_s, end_s)


@pytest.mark.parametrize(
    ("start_s", "end_s", "clock_mhz", "steady"),
    [
        (0.1, 0.9, 1410, True),
        (0.9, 1.1, 1200, False),
        (1.001, 1.01, 1200, False),  # the call has ended, the clock is not in force yet
        (1.016, 1.9, 1200, True),
        (1.5, 2.5, 1200, True),  # asked for again: no change
        (2.9, 3.001, 1410, False),
        (3.1, 9.0, 1410, True),
    ],
)
def test_requests(start_s: float, end_s: float, clock_mhz: int, steady: bool) -> None:
    assert clock(start_s, end_s) == ClockInForce(clock_mhz, steady)


@pytest.mark.parametrize(
    ("seen_mhz", "reasons", "found"),
    [
        (1195, EventReason.LOCKED_CLOCKS, ClockInForce(1200)),  # obeyed, within a step
        (1100, EventReason.POWER_CAP, ClockInForce(1100, throttled=True)),
        (1100, EventReason.LOCKED_CLOCKS, ClockInForce(1100)),  # without a reason: not obeyed
        (1410, EventReason.NONE, ClockInForce(1410)),
        (210, EventReason.IDLE, ClockInForce(1200)),  # an idle GPU falls
    ],
)
def test_what_was_seen(seen_mhz: int, reasons: EventReason, found: ClockInForce) -> None:
    assert clock(1.5, 1.6, Sample(1.55, 1, seen_mhz, reasons)) == found
    assert clock(1.5, 1.6, Sample(1.45, 1, seen_mhz, reasons)) == found, "none in the stretch: the last one before it"


def test_a_sample_of_the_clock_before_tells_nothing() -> None:
    assert clock(1.02, 1.03, Sample(1.012, 1, 1410, EventReason.NONE)) == ClockInForce(1200)


def test_the_actuator_keeps_what_it_did() -> None:
    now = FakeClock(10.0)
    inner = FakeActuator(now, now.sleep)
    inner.call_s = 0.005
    traced = TracedActuator(inner, now)
    traced.set_max_clock(1200)
    inner.failures.append(GpuError("no"))
    with pytest.raises(GpuError):
        traced.set_max_clock(900)
    traced.release()
    assert inner.clocks_mhz == [1200, 0]
    assert [c.clock_mhz for c in traced.changes()] == [1200, 900, 0]
    assert [c.begin_s for c in traced.changes()] == pytest.approx([10.0, 10.005, 10.01])
    traced.forget_before(10.012)
    assert [c.clock_mhz for c in traced.changes()] == [900, 0], "the last one before that time is in force at it"
