"""Curves between their measured clocks, and the points of a curve that any sensible plan may use.

Time of an operation follows ``a + b / f``: a share that memory or communication bounds and a share that scales with the SM
clock ``f`` (Kernel-level DVFS, arXiv 2601.08539). Between two neighbouring measured clocks it is therefore interpolated linearly in
1/f. Power between measured clocks is interpolated by PCHIP (Fritsch and Carlson, SIAM J. Numer. Anal. 17, 1980): it never
overshoots, so a power cap's plateau stays a plateau.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.optimize import nnls

from megatron_energy.errors import UserError
from megatron_energy.profiles.profile import Curve, FloatArray, IntArray, Profile


def interpolate(curve: Curve, supported_clocks_mhz: Sequence[int]) -> Curve:
    """The curve at every supported clock within its measured range; nothing is extrapolated.

    Measured clocks that are supported keep their measured time and energy. A curve of one point stays as it is.

    Raises:
        UserError: no supported clock lies within the measured range.
    """
    if len(curve.clock_mhz) == 1:
        return curve
    low, high = int(curve.clock_mhz[-1]), int(curve.clock_mhz[0])
    wanted = np.array(sorted({c for c in supported_clocks_mhz if low <= c <= high}, reverse=True), dtype=np.int64)
    if not len(wanted):
        raise UserError(f"no supported clock within the measured range {low}-{high} MHz: measure the profile on this GPU model")
    if np.all(curve.time_s > 0):
        time_s = _times(curve, wanted)
        energy_j = _between(curve, curve.energy_j / curve.time_s, wanted) * time_s
    else:  # a step that takes no time at some clock has no power there
        time_s, energy_j = _between(curve, curve.time_s, wanted), _between(curve, curve.energy_j, wanted)
    for column, clock in enumerate(wanted):  # exact, not only within rounding
        measured = np.flatnonzero(curve.clock_mhz == clock)
        if len(measured):
            time_s[column], energy_j[column] = curve.time_s[measured[0]], curve.energy_j[measured[0]]
    return Curve(wanted, time_s, energy_j)


def interpolate_profile(profile: Profile, supported_clocks_mhz: Sequence[int]) -> Profile:
    """The profile with every curve at every supported clock within its measured range.

    Raises:
        UserError: no supported clock lies within a curve's measured range.
    """
    curves = {key: interpolate(curve, supported_clocks_mhz) for key, curve in profile.curves.items()}
    return replace(profile, curves=curves)


def time_model(curve: Curve) -> tuple[float, float]:
    """(a, b) of ``time = a + b / f``, both >= 0 (a in s, b in s MHz), by least squares on relative residuals."""
    basis = np.stack([np.ones(len(curve.clock_mhz)), 1.0 / curve.clock_mhz], axis=1)
    scale = np.array([1.0, float(curve.clock_mhz.mean())])  # both columns of the same size: NNLS is scale-sensitive
    solution, _ = nnls(basis * scale / curve.time_s[:, None], np.ones(len(curve.time_s)))
    return float(solution[0]), float(solution[1] * scale[1])


def lower_hull(time_s: FloatArray, cost_j: FloatArray) -> IntArray:
    """Indices of the points on the decreasing part of the lower convex hull of (time, cost), fastest first.

    A plan never needs another point: a mix of two hull points is at least as fast and as cheap.
    """
    hull: list[int] = []
    for point in np.lexsort((cost_j, time_s)).tolist():
        while len(hull) > 1 and _above(time_s, cost_j, hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    cheapest = int(np.argmin(cost_j[hull]))
    return np.array(hull[: cheapest + 1], dtype=np.int64)


def _above(time_s: FloatArray, cost_j: FloatArray, a: int, b: int, c: int) -> bool:
    """Whether b lies on or above the line from a to c."""
    left = (time_s[b] - time_s[a]) * (cost_j[c] - cost_j[a])
    right = (cost_j[b] - cost_j[a]) * (time_s[c] - time_s[a])
    return bool(left <= right)


def _times(curve: Curve, wanted_mhz: IntArray) -> FloatArray:
    """Linear in 1/f between neighbouring measured clocks: exact for ``a + b / f``.

    Time is convex in 1/f (a power cap or a memory bound makes it flat at high clocks), so the chord is never below it: a plan
    made with these times is not slower than it claims.
    """
    return np.asarray(np.interp(1.0 / wanted_mhz, 1.0 / curve.clock_mhz, curve.time_s), dtype=np.float64)


def _between(curve: Curve, values: FloatArray, wanted_mhz: IntArray) -> FloatArray:
    """Shape-preserving interpolation of ``values`` over the clock."""
    spline = PchipInterpolator(curve.clock_mhz[::-1].astype(np.float64), values[::-1])
    return np.asarray(spline(wanted_mhz.astype(np.float64)), dtype=np.float64)
