"""A short measurement of a GPU's sensors: how often its counter steps, and whether counter and power agree."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from megatron_energy.gpus.device import Gpu

TOLERANCE = 0.15
"""Counter and integrated power may differ by this share before we warn.

The sensor of A100 and H100 sees 25% of the time and is off by some 5%; a short window adds one counter step. Reports of
disagreement that matter are larger: 187 J against 327 J over 5 s of idling (zeus #181).
"""


_PUBLISHED_WINDOWS = {
    "V100": "a mean over 11 ms, renewed every 20 ms",
    "A100": "a mean over 25 ms, renewed every 101 ms",
    "H100": "a mean over 25 ms, renewed every 100 ms",
}
"""The power sensor by GPU model: arXiv 2312.02741 (V100-SXM2, A100-SXM4, H100-PCIe by the instant field; drivers 525 to 535)."""


def published_window(gpu_name: str) -> str | None:
    """What was published on the window of this model's power sensor; None: nothing."""
    return next((window for model, window in _PUBLISHED_WINDOWS.items() if model in gpu_name), None)


@dataclass(frozen=True, slots=True)
class SensorCheck:
    """What a short look at the sensors found.

    Attributes:
        duration_s: length of the look, in seconds.
        update_period_s: time between two steps of the energy counter; None when fewer than three steps were seen.
        counter_j: joules by the counter between its first and last step seen; None without a counter or steps.
        power_j: joules by integrated power over the same stretch; None likewise.
    """

    duration_s: float
    update_period_s: float | None
    counter_j: float | None
    power_j: float | None

    @property
    def disagreement(self) -> float | None:
        """(counter - power) / power, or None when one is missing."""
        if self.counter_j is None or not self.power_j:
            return None
        return self.counter_j / self.power_j - 1

    @property
    def agrees(self) -> bool | None:
        """Whether the two are within :data:`TOLERANCE`; None when that is not known."""
        return None if self.disagreement is None else abs(self.disagreement) <= TOLERANCE


def check_sensors(
    gpu: Gpu,
    duration_s: float = 1.0,
    poll_s: float = 0.002,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> SensorCheck:
    """Watch the counter and the power for ``duration_s`` seconds, reading every ``poll_s``.

    The comparison runs from one counter step to another, so that partial steps at the ends do not disturb it.
    Raises GpuError when the GPU cannot be read.
    """
    begin_s = clock()
    previous_mj = gpu.total_energy_mj()
    power_at: tuple[float, float] = (begin_s, gpu.power_w())
    integral_j = 0.0
    steps: list[tuple[float, int, float]] = []  # (s, counter in mJ, integrated J so far)
    while clock() - begin_s < duration_s:
        sleep(poll_s)
        now_s, energy_mj, power_w = clock(), gpu.total_energy_mj(), gpu.power_w()
        integral_j += (now_s - power_at[0]) * (power_w + power_at[1]) / 2
        power_at = (now_s, power_w)
        if energy_mj is not None and energy_mj != previous_mj:
            steps.append((now_s, energy_mj, integral_j))
        previous_mj = energy_mj
    if len(steps) < 3:
        return SensorCheck(duration_s, None, None, None)
    first, last = steps[0], steps[-1]
    return SensorCheck(
        duration_s=duration_s,
        update_period_s=(last[0] - first[0]) / (len(steps) - 1),
        counter_j=(last[1] - first[1]) / 1000,
        power_j=last[2] - first[2],
    )
