"""Profiles: time and energy of every kind of operation at every measured clock."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Curve:
    """One operation kind of one GPU; all arrays have shape (F,), highest clock first.

    Attributes:
        clock_mhz: SM clocks.
        time_s: seconds of one operation.
        energy_j: joules of one GPU for one operation.
    """

    clock_mhz: IntArray
    time_s: FloatArray
    energy_j: FloatArray


@dataclass(frozen=True)
class Profile:
    """Curves keyed by (stage, chunk, instruction); chunk -1 means the whole stage, to be split evenly over the chunks.

    ``instruction`` is ``forward``, ``backward``, ``grad-sync``, ``optimizer``, ``blocking``, ``p2p`` or another name for a fixed-time step.
    ``provenance`` holds plain facts: gpu, source, emulated (true/false), power_limit_w, versions.
    """

    curves: dict[tuple[int, int, str], Curve]
    blocking_power_w: float | None = None
    provenance: dict[str, str | float | bool] = field(default_factory=dict)
