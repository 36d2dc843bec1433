"""The sequential test on iteration times. Without noise its sums can be added up by hand; what noise does is in tools/check_guard.py."""

import math
import random

import pytest

from megatron_energy.session.guard import CLIP, LEAST_DEVIATION, LEAST_WINDOW, MOST_WINDOW, THRESHOLD, TOLERANCE, WINDOW, Guard
from megatron_energy.session.noise import Noise, robust_mean


def quiet_guard(slowdown: float = 0.0) -> Guard:
    """A baseline of 2 s without noise."""
    guard = Guard(slowdown)
    guard.rebase([2.0, 2.0, 2.0])
    return guard


def until_alarm(guard: Guard, time_s: float, most: int = 200) -> int | None:
    return next((n for n in range(1, most + 1) if guard.observe(time_s)), None)


def test_without_noise_anything_up_to_the_tolerance_is_never_an_alarm():
    assert until_alarm(quiet_guard(), 2.0 * math.exp(TOLERANCE)) is None
    assert until_alarm(quiet_guard(), 1.5) is None


def test_without_noise_the_sum_can_be_added_up():
    # 3%: every iteration counts the most that one may. 0.6%: ln 1.006 = 0.598% is 0.98 of the least deviation above the tolerance.
    assert until_alarm(quiet_guard(), 2.06) == math.floor(THRESHOLD / CLIP) + 1 == 5
    step = (math.log(1.006) - TOLERANCE) / LEAST_DEVIATION
    assert until_alarm(quiet_guard(), 2.012) == math.floor(THRESHOLD / step) + 1 == 8


def test_the_second_test_is_sure_after_its_window():
    """Times that alternate by 2% look like a deviation of 2.7%; 2.1% more is above the limit of 0.75 deviations, and adds up slowly."""
    guard = Guard(0.0)
    up_and_down = [2.0 * math.exp(0.02), 2.0 * math.exp(-0.02)] * 32
    guard.rebase(up_and_down)
    assert guard.limit == pytest.approx(0.021, abs=0.001)
    assert not any(guard.observe(time_s * math.exp(0.016)) for time_s in up_and_down[: 2 * WINDOW])
    guard.interrupt()
    assert [guard.observe(time_s * math.exp(0.024)) for time_s in up_and_down[:WINDOW]] == [False] * (WINDOW - 1) + [True]


def test_windows_tell_the_limit_from_noise_or_not():
    assert quiet_guard().is_certain(LEAST_WINDOW)
    guard = Guard(0.0)
    guard.rebase([2.0 * math.exp(0.02), 2.0 * math.exp(-0.02)] * 32)
    assert not guard.is_certain(MOST_WINDOW), "0.75 deviations are 2.05 standard errors of such a difference"
    assert guard.is_certain(33)


def test_a_plan_that_has_gone_well_faster_than_the_baseline_is_what_is_expected_of_it():
    """A baseline of three that was 1% too long by chance: half of the 2% by which iterations become longer later does not hide in it."""
    guard = Guard(0.0)
    noise = random.Random(1)
    guard.rebase([2.02 * math.exp(noise.gauss(0.0, 0.01)) for _ in range(3)])
    for _ in range(300):
        guard.observe(2.0 * math.exp(noise.gauss(0.0, 0.01)))
    assert guard._understood < -0.005


def test_the_allowed_slowdown_is_allowed():
    assert until_alarm(quiet_guard(slowdown=0.03), 2.06) is None
    assert until_alarm(quiet_guard(slowdown=0.03), 2.08) is not None


def test_rare_long_iterations_are_no_alarm():
    guard = quiet_guard()
    assert not any(guard.observe(6.0 if n % 20 == 0 else 2.0) for n in range(1000))


def test_the_excess_is_that_since_the_change():
    guard = quiet_guard()
    for _ in range(50):
        guard.observe(1.98)
    assert until_alarm(guard, 2.06) == 5
    assert guard.excess == pytest.approx(0.03)


def test_a_longer_baseline_is_another_baseline():
    guard = quiet_guard()
    assert guard.rebase([2.06, 2.06, 2.06]) == pytest.approx(0.03)
    assert until_alarm(guard, 2.06) is None
    assert until_alarm(guard, 2.13) == 5


def test_windows_that_differ_by_noise_are_pooled():
    guard = Guard(0.0)
    guard.rebase([1.96, 2.04, 1.97, 2.03] * 4)  # mean of the logarithms: that of 2.0 within 0.1%
    change = guard.rebase([1.98, 2.06, 1.99, 2.05] * 2)
    assert change == pytest.approx(0.01, abs=0.001)
    assert math.exp(guard._baseline) == pytest.approx(2.0 * 1.01 ** (1 / 3), rel=0.001)  # 8 of 24 iterations


def test_two_fresh_windows_are_compared():
    guard = quiet_guard(slowdown=0.01)
    assert guard.compared([2.0] * 3, [2.06] * 3) == pytest.approx(2.06 / 2.02 - 1)


def test_noise_asks_for_longer_windows_and_wider_limits():
    noisy = Guard(0.0)
    noisy.rebase([1.96, 2.04] * 32)
    assert quiet_guard().window == LEAST_WINDOW
    assert noisy.window == MOST_WINDOW
    assert quiet_guard().limit == quiet_guard().allowance == TOLERANCE
    assert noisy.limit > noisy.allowance > TOLERANCE


def test_a_short_baseline_is_uncertain_where_there_is_noise():
    short, long = Guard(0.0), Guard(0.0)
    short.rebase([1.96, 2.04, 1.98])
    long.rebase([1.96, 2.04, 1.98] * 30)
    assert (short.uncertain, long.uncertain, quiet_guard().uncertain) == (True, False, False)


def test_noise_is_the_standard_deviation():
    normal = random.Random(1)
    noise = Noise()
    for _ in range(2000):
        noise.add(normal.gauss(0.7, 0.02))
    assert noise.deviation == pytest.approx(0.02, rel=0.12)
    assert len(noise._ordered) == len(noise._recent) == 512


def test_noise_does_not_see_a_change_of_the_mean_nor_long_iterations():
    normal = random.Random(2)
    noise = Noise()
    for n in range(600):
        noise.add(normal.gauss(0.0 if n < 300 else 0.06, 0.02) + (1.1 if n % 100 == 50 else 0.0))
    assert noise.deviation == pytest.approx(0.02, rel=0.15)


def test_noise_follows_what_happens():
    noise = Noise()
    for n in range(600):
        noise.add(0.1 * (n % 2))
    for _ in range(600):
        noise.add(0.0)
    assert noise.deviation == 0.0


def test_an_interruption_is_no_difference():
    noise = Noise()
    noise.add(1.0)
    noise.interrupt()
    noise.add(5.0)
    noise.add(5.0)
    assert noise.deviation == 0.0


def test_the_robust_mean_draws_far_values_in():
    assert robust_mean([1.0, 1.0, 100.0], 0.0) == 1.0  # few: the median
    assert robust_mean([0.0] * 9 + [100.0], 1.0) == pytest.approx(0.25)  # 2.5 deviations, a tenth of the values
    assert robust_mean([1.0, 2.0, 3.0, 4.0] * 3, 10.0) == pytest.approx(2.5)
