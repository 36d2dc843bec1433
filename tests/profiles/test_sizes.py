"""Profiles whose operations were not measured at the same clocks."""

import numpy as np

from megatron_energy.profiles.profile import Curve, Profile
from megatron_energy.profiles.sizes import uneven_maximum


def curve(*clocks_mhz: int) -> Curve:
    return Curve(np.array(clocks_mhz), np.ones(len(clocks_mhz)), np.ones(len(clocks_mhz)))


def test_an_operation_without_the_highest_clock_is_named() -> None:
    curves = {(0, -1, "forward"): curve(1410, 1230), (0, -1, "backward"): curve(1230), (0, -1, "p2p"): curve(900)}
    assert uneven_maximum(Profile(curves)) == (
        "not every operation was measured at 1410 MHz: the baseline takes backward of stage 0 (1230) MHz instead"
    )


def test_nothing_is_said_of_equal_clocks() -> None:
    assert uneven_maximum(Profile({(0, -1, "forward"): curve(1410), (1, -1, "forward"): curve(1410, 1200)})) == ""
