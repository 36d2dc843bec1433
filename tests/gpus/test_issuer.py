"""Decisions of the clock controller, on a clock that the test moves."""

import math

import pytest

from megatron_energy.gpus.counts import Counts, Quantiles
from megatron_energy.gpus.device import EventReason
from megatron_energy.gpus.errors import GpuError, GpuLost, NoDriver, NoPermission, NotSupported
from megatron_energy.gpus.issuer import Issuer, Settings
from tests.emulated_gpus import FakeClock
from tests.gpus.fake_actuator import FakeActuator


class Readings:
    """What the GPU shows."""

    def __init__(self) -> None:
        self.clock_mhz = 1080
        self.reasons = EventReason.LOCKED_CLOCKS
        self.lost = False

    def sm_clock_mhz(self) -> int:
        if self.lost:
            raise GpuLost("GPU is lost")
        return self.clock_mhz

    def event_reasons(self) -> EventReason:
        return self.reasons


class Bench:
    """An issuer with everything around it."""

    def __init__(self, readings: Readings | None = None, **settings: float) -> None:
        self.clock = FakeClock(100.0)
        self.actuator = FakeActuator(self.clock, self.clock.sleep)
        self.issuer = Issuer(self.actuator, Settings(**settings), readings, None, self.clock, self.clock.sleep)  # type: ignore[arg-type]

    def handle(self, clock_mhz: int, raise_in_s: float = math.inf) -> None:
        """A request that is due now, a second after the one before."""
        self.clock.now_s += 1.0
        self.issuer.handle(clock_mhz, self.clock.now_s, raise_in_s)

    def counted(self) -> dict[str, int]:
        """All counts that are not 0."""
        return {name: number for name, number in self.issuer.report().counts.as_dict().items() if number}


def test_requests_are_issued_in_order() -> None:
    bench = Bench()
    for clock_mhz in (1080, 1410, 900, 0):
        bench.handle(clock_mhz)
    assert bench.actuator.asked == [(101.0, 1080), (102.0, 1410), (103.0, 900), (104.0, 0)]
    assert bench.counted() == {"issued": 4}


def test_a_clock_that_is_in_force_is_not_asked_for_again() -> None:
    bench = Bench()
    for clock_mhz in (0, 1080, 1080, 1080, 0, 0):
        bench.handle(clock_mhz)
    assert bench.actuator.clocks_mhz == [1080, 0]
    assert bench.counted() == {"issued": 2, "unchanged": 4}


def test_a_gpu_that_was_never_changed_is_not_reset() -> None:
    bench = Bench()
    bench.handle(0)  # as it was found
    assert bench.issuer.release() == ""
    bench.issuer.stop("asked to")
    assert bench.actuator.asked == []


@pytest.mark.parametrize(("raise_in_s", "expected_mhz"), [(0.059, [1410]), (0.061, [1410, 900])])
def test_a_lower_shortly_before_the_next_raise_is_dropped(raise_in_s: float, expected_mhz: list[int]) -> None:
    bench = Bench(lead_s=0.06)
    bench.handle(1410)
    bench.handle(900, raise_in_s)
    assert bench.actuator.clocks_mhz == expected_mhz
    assert bench.issuer.counts.dropped_before_raise == 2 - len(expected_mhz)


def test_what_counts_is_the_part_of_the_lead_that_a_call_may_take() -> None:
    """A raise 45 ms from now is in time whatever the lower's call takes, if no call takes longer than 44 of the lead's 60 ms."""
    for raise_in_s, issued in ((0.043, 1), (0.045, 2)):
        bench = Bench(lead_s=0.06, in_force_s=0.016)
        bench.handle(1410)
        bench.handle(900, raise_in_s)
        assert bench.issuer.counts.issued == issued


def test_a_lower_that_is_handled_late_has_less_time_left() -> None:
    bench = Bench(lead_s=0.06)
    bench.handle(1410)
    bench.clock.now_s += 1.0
    bench.issuer.handle(900, due_s=bench.clock.now_s - 0.05, raise_in_s=0.1)  # 50 ms left of 100 ms
    bench.handle(1410)
    assert bench.actuator.clocks_mhz == [1410]  # never left, so never asked for again
    assert bench.counted() == {"issued": 1, "dropped_before_raise": 1, "unchanged": 1}


def test_lowers_keep_their_distance_and_raises_do_not() -> None:
    bench = Bench(least_interval_s=0.05)
    bench.handle(1200)
    now_s = bench.clock.now_s
    bench.clock.now_s = now_s + 0.049
    bench.issuer.handle(900, bench.clock.now_s)
    bench.issuer.handle(1410, bench.clock.now_s)
    bench.clock.now_s = now_s + 0.2
    bench.issuer.handle(900, bench.clock.now_s)
    assert bench.actuator.clocks_mhz == [1200, 1410, 900]
    assert bench.issuer.counts.dropped_too_soon == 1


def test_a_raise_in_force_after_its_lead_is_late() -> None:
    bench = Bench(lead_s=0.06, in_force_s=0.01)
    for call_s, clock_mhz in ((0.045, 900), (0.045, 1200), (0.055, 1410)):  # a slow lower harms nobody
        bench.actuator.call_s = call_s
        bench.handle(clock_mhz)
    assert bench.counted() == {"issued": 3, "late_raises": 1}
    bench.actuator.call_s = 0.0
    bench.issuer.handle(0, bench.clock.now_s - 0.051)  # issued late
    assert bench.counted() == {"issued": 4, "late_raises": 2}


def test_a_failed_raise_is_repeated_and_a_failed_lower_is_not() -> None:
    bench = Bench(retries=2, retry_pause_s=0.004, lead_s=0.01)
    bench.handle(900)
    bench.actuator.failures = [GpuError("timeout"), GpuError("timeout")]
    bench.handle(1410)
    assert bench.actuator.asked == [(101.0, 900), (102.012, 1410)]  # 4 ms and 8 ms later
    assert bench.counted() == {"issued": 2, "failures": 2, "retried": 2, "late_raises": 1}
    bench.actuator.failures = [GpuError("in use")]
    bench.handle(900)
    bench.handle(1410)  # what is in force is not known, so it is asked for again
    assert bench.actuator.clocks_mhz == [900, 1410, 1410]
    assert bench.issuer.report().last_failure == "in use"
    assert bench.issuer.stopped == ""


def test_after_failures_in_a_row_the_clock_is_given_back_and_it_says_so() -> None:
    bench = Bench(retries=2, failures_in_a_row=5)
    bench.actuator.failures = [GpuError(f"timeout {number}") for number in range(5)]
    for clock_mhz in (900, 1080, 1410, 900, 1080, 1410, 900):
        bench.handle(clock_mhz)
    assert bench.issuer.stopped == "clock control stopped after 5 failures in a row, the last: timeout 4; the GPU chooses its clock"
    assert bench.actuator.clocks_mhz == [0]
    assert bench.counted() == {"failures": 5, "ignored": 2}


@pytest.mark.parametrize("error", [NoPermission("no"), NotSupported("no"), GpuLost("gone"), NoDriver("none")])
def test_what_will_not_get_better_stops_at_once(error: Exception) -> None:
    bench = Bench()
    bench.handle(900)
    bench.actuator.failures = [error] * 4
    bench.handle(1410)
    assert bench.issuer.stopped == f"clock control stopped: {error}; the clock could not be given back: {error}"
    assert bench.counted() == {"issued": 1, "failures": 4, "late_raises": 1}  # the raise, and three tries to give the clock back


def test_giving_the_clock_back_is_tried_again() -> None:
    bench = Bench(retries=2)
    bench.handle(900)
    bench.actuator.failures = [GpuError("in use")] * 2
    assert bench.issuer.release() == ""
    assert bench.actuator.clocks_mhz == [900, 0]
    bench.handle(900)
    bench.actuator.failures = [GpuError("in use")] * 3
    assert bench.issuer.release() == "in use"
    assert bench.issuer.report().last_clock_mhz is None


def test_every_nth_call_the_clock_is_read_back() -> None:
    readings = Readings()
    bench = Bench(readings, read_back_every=2)
    for _ in range(4):
        bench.handle(1080)
        bench.handle(0)
    assert bench.counted() == {"issued": 8}  # read before calls 2, 4, ... when the GPU's own choice is in force: nothing to obey
    for _ in range(4):
        bench.handle(1080)
        readings.clock_mhz = 1095  # within a step
        bench.handle(900)
        readings.clock_mhz = 900
    assert bench.counted() == {"issued": 16, "read_backs": 3}


@pytest.mark.parametrize(
    ("clock_mhz", "reasons", "counted"),
    [
        (1080, EventReason.LOCKED_CLOCKS, {}),
        (1410, EventReason.NONE, {"disobeyed": 1}),
        (600, EventReason.POWER_CAP, {"throttled": 1}),
        (600, EventReason.THERMAL | EventReason.LOCKED_CLOCKS, {"throttled": 1}),
        (210, EventReason.IDLE, {}),
        (600, EventReason.LOCKED_CLOCKS, {"disobeyed": 1}),  # somebody else's lock
    ],
)
def test_a_clock_that_does_not_obey_is_counted(clock_mhz: int, reasons: EventReason, counted: dict[str, int]) -> None:
    readings = Readings()
    bench = Bench(readings, read_back_every=1)
    bench.handle(1080)
    readings.clock_mhz, readings.reasons = clock_mhz, reasons
    bench.handle(900)
    assert bench.counted() == {"issued": 2, "read_backs": 1, **counted}
    assert ("MHz in force where 1080 MHz were asked for" in bench.issuer.report().last_disobeyed) == ("disobeyed" in counted)


def test_a_clock_is_not_read_back_before_it_can_be_in_force() -> None:
    readings = Readings()
    readings.clock_mhz = 1410
    bench = Bench(readings, read_back_every=1, in_force_s=0.5, lead_s=1.0)
    bench.handle(1080)
    bench.clock.now_s += 0.4
    bench.issuer.handle(0, bench.clock.now_s)
    assert bench.counted() == {"issued": 2}


def test_a_clock_that_cannot_be_read_back_stops_nothing() -> None:
    readings = Readings()
    readings.lost = True
    bench = Bench(readings, read_back_every=1)
    bench.handle(1080)
    bench.handle(0)
    assert bench.counted() == {"issued": 2}
    assert bench.issuer.report().last_failure == "the clock could not be read back: GPU is lost"


def test_delays_and_calls_are_reported() -> None:
    bench = Bench()
    bench.actuator.call_s = 0.005
    for delay_s, clock_mhz in ((0.001, 1000), (0.002, 1100), (0.006, 1200)):
        bench.clock.now_s += 1.0
        bench.issuer.handle(clock_mhz, bench.clock.now_s - delay_s)
    report = bench.issuer.report()
    assert report.delay_s is not None and report.call_s is not None
    assert (report.delay_s.samples, report.delay_s.median_s, report.delay_s.p99_s) == (3, pytest.approx(0.002), pytest.approx(0.006))
    assert report.call_s.median_s == pytest.approx(0.005)
    assert report.last_clock_mhz == 1200


def test_quantiles() -> None:
    assert Quantiles.of([]) is None
    assert Quantiles.of([3.0]) == Quantiles(1, 3.0, 3.0)
    assert Quantiles.of(range(1, 101)) == Quantiles(100, 50.5, 99)
    assert Quantiles.of(range(1, 202)) == Quantiles(201, 101, 199)  # 199 of 201 are 99.005%


def test_settled_sums_up_the_ends_of_requests() -> None:
    counts = Counts(requested=21, ignored=1, coalesced=2, dropped_before_raise=3, dropped_too_soon=4, unchanged=5, issued=6, retried=7)
    assert counts.settled() == counts.requested
