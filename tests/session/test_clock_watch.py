"""What clocks under load tell of other programs that lock them."""

import pytest

from megatron_energy.gpus.device import EventReason
from megatron_energy.gpus.sampler import Sample
from megatron_energy.session.clock_trace import Change, ClockTrace
from megatron_energy.session.clock_watch import LEAST, ClockWatch

TOP_MHZ, IN_FORCE_S = 1410, 0.01
LOCKED, NONE = EventReason.LOCKED_CLOCKS, EventReason.NONE
CHANGES = [Change(1.0, 1.005, 1200), Change(5.0, 5.005, 0)]
BUSY = [(0.0, 2.0), (2.5, 10.0)]
DURING = [1.1 + 0.05 * n for n in range(16)]
"""Times under load, while 1200 MHz are asked for."""


def trace(samples: list[Sample]) -> ClockTrace:
    return ClockTrace(CHANGES, samples, TOP_MHZ, IN_FORCE_S)


def found(clocks_mhz: list[int], reasons: EventReason = LOCKED, times_s: list[float] = DURING, before: int = 0) -> str:
    """What a watch finds after these clocks, ``before`` (MHz) having been seen at the GPU's own choice."""
    watch = ClockWatch(TOP_MHZ)
    own = [Sample(0.05 * n, n, before, NONE) for n in range(1, 2 * LEAST)] if before else []
    samples = [*own, *(Sample(t, 100 + n, mhz, reasons) for n, (t, mhz) in enumerate(zip(times_s, clocks_mhz, strict=False)))]
    watch.look(trace(samples), samples, BUSY)
    return watch.found()


def test_a_clock_above_the_request_means_that_our_lock_is_gone() -> None:
    assert found([1410] * 12, NONE) == (
        "clock 1410 MHz where 1200 MHz were asked for, in 12 of 12 readings under load, event reasons 0x0: "
        "its lock has been changed or removed"
    )


def test_a_clock_below_the_request_without_a_reason_means_a_lower_lock() -> None:
    assert found([1095] * 12, LOCKED) == (
        "clock 1095 MHz where 1200 MHz were asked for, in 12 of 12 readings under load, event reasons 0x2: "
        "a lower lock than ours is in force"
    )


@pytest.mark.parametrize(
    "reason", [EventReason.POWER_CAP, EventReason.THERMAL, EventReason.SYNC_BOOST, EventReason.IDLE, EventReason.DISPLAY]
)
def test_reasons_of_the_gpus_own_are_nobodys_lock(reason: EventReason) -> None:
    assert found([1095] * 16, LOCKED | reason) == ""


def test_a_clock_that_is_obeyed_within_a_step() -> None:
    assert found([1200, 1195, 1205, 1215] * 4) == ""


def test_few_readings_prove_nothing() -> None:
    assert found([1410] * (LEAST - 1), NONE) == ""
    assert found([1410] * LEAST, NONE) != ""
    assert found([1200] * 8 + [1410] * 7, NONE) == "", "half of them have to be off"


def test_readings_around_a_switch_and_without_load_do_not_count() -> None:
    around = [1.0 + 0.002 * n for n in range(12)]  # the clock is asked for at 1.000 s, and in force at 1.015 s
    assert found([1410] * 12, NONE, around) == ""
    idle = [2.01 + 0.04 * n for n in range(12)]  # between two operations
    assert found([1410] * 12, NONE, idle) == ""


def test_a_gpu_that_never_reaches_its_maximum_is_not_locked() -> None:
    """Nothing throttles it, and still its own choice under load is 1150 MHz: so 1200 MHz are out of reach as well."""
    assert found([1150] * 16, NONE, before=1150) == ""
    assert found([1095] * 16, NONE, before=1150) != ""


def test_what_was_found_is_told_once_and_what_was_seen_counts_once() -> None:
    watch = ClockWatch(TOP_MHZ)
    samples = [Sample(t, n, 1410, NONE) for n, t in enumerate(DURING)]
    watch.look(trace(samples), samples, BUSY[:1])
    assert watch.found() and not watch.found()
    watch.look(trace(samples), samples, BUSY[:1])
    assert not watch.found()
