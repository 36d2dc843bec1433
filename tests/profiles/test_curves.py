import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_energy.errors import UserError
from megatron_energy.profiles.curves import interpolate, interpolate_profile, lower_hull, time_model
from megatron_energy.profiles.profile import Curve, Profile


def curve(points):
    clocks, times, energies = zip(*sorted(points, reverse=True), strict=True)
    return Curve(np.array(clocks, dtype=np.int64), np.array(times), np.array(energies))


def law(clock):
    """Time a + b / f and power rising with f, as on a GPU: (MHz, s, J)."""
    time_s = 0.01 + 20.0 / clock
    return clock, time_s, time_s * (100 + 0.2 * clock)


def test_law_is_recovered_between_measured_clocks():
    sparse = curve([law(clock) for clock in (600, 900, 1200, 1500)])
    dense = interpolate(sparse, range(300, 1600, 15))
    assert dense.clock_mhz[0] == 1500
    assert dense.clock_mhz[-1] == 600
    for clock, time_s, energy_j in zip(dense.clock_mhz, dense.time_s, dense.energy_j, strict=True):
        assert time_s == pytest.approx(law(clock)[1], rel=1e-9)
        assert energy_j == pytest.approx(law(clock)[2], rel=1e-9)  # PCHIP reproduces a straight line


def test_time_model_is_fitted_to_a_and_b():
    a, b = time_model(curve([law(clock) for clock in (600, 900, 1500)]))
    assert a == pytest.approx(0.01)
    assert b == pytest.approx(20.0)


def test_measured_points_stay_exactly():
    noisy = curve([(1500, 1.0, 400.0), (1200, 1.31, 371.0), (900, 1.52, 377.0), (600, 2.4, 500.0)])
    dense = interpolate(noisy, range(600, 1501, 100))
    for clock, time_s, energy_j in zip(noisy.clock_mhz, noisy.time_s, noisy.energy_j, strict=True):
        at = list(dense.clock_mhz).index(clock)
        assert (dense.time_s[at], dense.energy_j[at]) == (time_s, energy_j)


def test_power_plateau_of_a_cap_is_kept():
    capped = curve([(1400, 1.0, 300.0), (1300, 1.0, 300.0), (1200, 1.1, 300.0), (1000, 1.3, 260.0)])
    dense = interpolate(capped, [1400, 1350, 1300])
    assert dense.energy_j[1] / dense.time_s[1] == pytest.approx(300.0)


def test_only_supported_clocks_within_the_measured_range():
    sparse = curve([law(clock) for clock in (900, 1200)])
    assert interpolate(sparse, [210, 900, 1000, 1410]).clock_mhz.tolist() == [1000, 900]
    with pytest.raises(UserError, match="900-1200 MHz"):
        interpolate(sparse, [210, 1410])


def test_one_point_and_zero_times_are_kept():
    fixed = curve([(0, 0.002, 0.0)])
    assert interpolate(fixed, [210]) is fixed
    nothing = interpolate(curve([(1200, 0.0, 0.0), (900, 0.0, 0.0)]), [1200, 1000, 900])
    assert nothing.time_s.tolist() == [0.0, 0.0, 0.0]
    assert nothing.energy_j.tolist() == [0.0, 0.0, 0.0]


def test_every_curve_of_a_profile_is_interpolated():
    profile = Profile({(0, -1, "forward"): curve([law(900), law(1200)]), (0, -1, "p2p"): curve([(0, 0.1, 0.0)])}, 80.0)
    dense = interpolate_profile(profile, [900, 1050, 1200])
    assert len(dense.curves[0, -1, "forward"].clock_mhz) == 3
    assert len(dense.curves[0, -1, "p2p"].clock_mhz) == 1
    assert dense.blocking_power_w == 80.0


def test_hull_by_hand():
    times = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    costs = np.array([10.0, 9.0, 4.0, 3.5, 6.0])  # the second lies above the line from first to third; the last costs more again
    assert lower_hull(times, costs).tolist() == [0, 2, 3]


def test_hull_of_equal_times_is_the_cheapest():
    assert lower_hull(np.array([2.0, 2.0, 2.0]), np.array([5.0, 3.0, 4.0])).tolist() == [1]


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(-10, 10)), min_size=1, max_size=12))
def test_no_point_lies_below_the_hull(points):
    times, costs = np.array([t for t, _ in points]), np.array([c for _, c in points])
    hull = lower_hull(times, costs)
    assert (np.diff(times[hull]) > 0).all()
    assert (np.diff(costs[hull]) < 0).all()
    for time_s, cost_j in points:
        if time_s >= times[hull[0]]:
            assert cost_j >= np.interp(time_s, times[hull], costs[hull]) - 1e-9
