"""Whether somebody has changed a GPU's power limit during the run: the one trace of another writer that NVML shows."""

from collections.abc import Callable

from megatron_energy.gpus.errors import GpuError

TOLERANCE_W = 1.0
"""The driver rounds limits."""


class LimitWatch:
    """Compares the power limit in force with the one before.

    Args:
        read: the limit in W; may raise GpuError.
    """

    def __init__(self, read: Callable[[], float]) -> None:
        self._read = read
        self._limit_w = self._now_w()

    def changed(self) -> str:
        """What has changed since the last time, in words; empty: nothing, or the GPU does not tell."""
        before_w, now_w = self._limit_w, self._now_w()
        self._limit_w = before_w if now_w is None else now_w
        if before_w is None or now_w is None or abs(now_w - before_w) <= TOLERANCE_W:
            return ""
        return f"power limit {before_w:.0f} W before, now {now_w:.0f} W"

    def _now_w(self) -> float | None:
        try:
            return self._read()
        except GpuError:
            return None
