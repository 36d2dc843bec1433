"""What is said of a profile that can be planned with, but perhaps not as its user means."""

import numpy as np
import pytest

from megatron_energy.profiles.profile import Curve, Profile
from megatron_energy.profiles.remarks import doubtful_units, measured_at_one_clock, remarks, uneven_clocks


def curve(*clocks_mhz: int, time_s: float = 1.0, energy_j: float = 300.0) -> Curve:
    points = len(clocks_mhz)
    return Curve(np.array(clocks_mhz), np.full(points, time_s), np.full(points, energy_j))


def test_a_clock_that_one_operation_lacks_is_named() -> None:
    curves = {(0, -1, "forward"): curve(1410, 1230, 870), (0, -1, "backward"): curve(1410, 1230), (0, -1, "p2p"): curve(900)}
    assert uneven_clocks(Profile(curves)) == (
        "left out, as not every operation was measured there: 870 MHz (no backward of stage 0); the baseline is at 1410 MHz, "
        "and the bound is over the rest"
    )


def test_without_the_highest_clock_the_baseline_is_at_the_next_one() -> None:
    curves = {(stage, -1, "forward"): curve(1230, 870) for stage in range(4)} | {(0, -1, "backward"): curve(1410, 1230, 870)}
    assert uneven_clocks(Profile(curves)) == (
        "left out, as not every operation was measured there: 1410 MHz (no forward of stage 0, forward of stage 1 and 2 more); "
        "the baseline is at 1230 MHz, and the bound is over the rest"
    )


@pytest.mark.parametrize("mhz", [1410, 1230])
def test_an_operation_of_one_clock_is_named(mhz: int) -> None:
    curves = {(0, -1, "forward"): curve(1410, 1230), (0, -1, "backward"): curve(mhz), (0, -1, "p2p"): curve(900)}
    assert uneven_clocks(Profile(curves)) == ""
    assert (
        measured_at_one_clock(Profile(curves))
        == f"measured at one clock, and taken as the same at every other: backward of stage 0 ({mhz} MHz)"
    )
    assert measured_at_one_clock(Profile({(0, -1, "forward"): curve(mhz), (0, -1, "backward"): curve(mhz)})) == ""


@pytest.mark.parametrize(
    ("time_s", "energy_j", "said"),
    [
        (1000.0, 300.0, "no operation draws more than 0.3 W, a waiting GPU 84 W: are times in s and energies in J?"),
        (1.0, 300e3, "an operation draws 300,000 W on one GPU: are times in s and energies in J?"),
        (1.0, 300.0, ""),
        (1.0, 0.0, ""),  # a profile of times alone
    ],
)
def test_a_power_that_no_gpu_has_is_told(time_s: float, energy_j: float, said: str) -> None:
    profile = Profile({(0, -1, "forward"): curve(1410, 1230, time_s=time_s, energy_j=energy_j)})
    assert doubtful_units(profile, 84.0) == said


def test_nothing_is_said_of_a_sound_profile() -> None:
    sound = {(0, -1, "forward"): curve(1410, 1230), (1, -1, "forward"): curve(1410, 1230), (0, -1, "grad-sync"): curve(0)}
    assert remarks(Profile(sound), 84.0) == []
