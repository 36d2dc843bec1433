"""What clock was asked for at what time, kept by the actuator that asked."""

import math
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from megatron_energy.gpus.actuators import Actuator
from megatron_energy.gpus.device import THROTTLING, EventReason
from megatron_energy.gpus.issuer import OWN_CHOICE_MHZ, TOLERANCE_MHZ
from megatron_energy.gpus.sampler import Sample


@dataclass(frozen=True, slots=True)
class Change:
    """A call that changed the clock: when it began and ended (s), and the clock from then on (0 MHz: the GPU's own choice)."""

    begin_s: float
    end_s: float
    clock_mhz: int


class TracedActuator:
    """Does what another actuator does, and keeps what it did. Calls that fail are kept too: the clock may change or not."""

    def __init__(self, actuator: Actuator, clock: Callable[[], float] = time.monotonic) -> None:
        self._actuator, self._clock = actuator, clock
        self._changes: list[Change] = []
        self._lock = threading.Lock()

    def set_max_clock(self, clock_mhz: int) -> None:
        """See :class:`~megatron_energy.gpus.actuators.Actuator`."""
        self._traced(lambda: self._actuator.set_max_clock(clock_mhz), clock_mhz)

    def release(self) -> None:
        """Likewise."""
        self._traced(self._actuator.release, OWN_CHOICE_MHZ)

    def changes(self) -> list[Change]:
        """All that are kept, in order."""
        with self._lock:
            return list(self._changes)

    def forget_before(self, time_s: float) -> None:
        """Drop changes before this time, but for the last one."""
        with self._lock:
            keep = max(bisect_right(self._changes, time_s, key=lambda change: change.end_s) - 1, 0)
            del self._changes[:keep]

    def _traced(self, call: Callable[[], None], clock_mhz: int) -> None:
        begin_s = self._clock()
        try:
            call()
        finally:
            with self._lock:
                self._changes.append(Change(begin_s, self._clock(), clock_mhz))


@dataclass(frozen=True, slots=True)
class ClockInForce:
    """The clock during a stretch of time.

    Attributes:
        clock_mhz: as asked for where the GPU obeyed, else as seen.
        steady: one clock throughout.
        throttled: held down by the GPU, for a reason such as its power limit.
    """

    clock_mhz: float
    steady: bool = True
    throttled: bool = False


class ClockTrace:
    """The clocks of one GPU over some iterations, from requests and from what was seen.

    Args:
        changes: in order.
        samples: in order.
        top_mhz: what the GPU runs at by its own choice.
        in_force_s: from the end of a call until the clock is in force.
    """

    def __init__(self, changes: Sequence[Change], samples: Sequence[Sample], top_mhz: int, in_force_s: float) -> None:
        self._samples = samples
        self._steps: list[tuple[float, float, int]] = [(-math.inf, -math.inf, top_mhz)]  # (asked s, in force s, MHz)
        for change in changes:
            clock_mhz = change.clock_mhz or top_mhz
            if clock_mhz != self._steps[-1][2]:
                self._steps.append((change.begin_s, change.end_s + in_force_s, clock_mhz))

    def asked_mhz(self, start_s: float, end_s: float) -> int | None:
        """The clock asked for between two times, and in force by then if the GPU obeys; None where it changed."""
        _, since_s, asked_mhz = self._steps[bisect_right(self._steps, end_s, key=lambda step: step[0]) - 1]
        return asked_mhz if since_s <= start_s else None

    def during(self, start_s: float, end_s: float) -> ClockInForce:
        """The clock between two times."""
        _, since_s, asked_mhz = self._steps[bisect_right(self._steps, end_s, key=lambda step: step[0]) - 1]
        if since_s > start_s:
            return ClockInForce(asked_mhz, steady=False)
        return self._as_seen(asked_mhz, since_s, start_s, end_s)

    def _as_seen(self, asked_mhz: int, since_s: float, start_s: float, end_s: float) -> ClockInForce:
        """Whether the GPU obeyed, by the samples in the stretch, or by the last one before it if none fell into it."""
        first = bisect_left(self._samples, start_s, key=lambda sample: sample.time_s)
        last = bisect_right(self._samples, end_s, key=lambda sample: sample.time_s)
        near = self._samples[first:last] or self._samples[max(first - 1, 0) : first]
        seen = [s for s in near if s.energy_mj is not None and s.time_s >= since_s and not s.reasons & EventReason.IDLE]
        if not seen:
            return ClockInForce(asked_mhz)
        mean_mhz = sum(sample.clock_mhz for sample in seen) / len(seen)
        if abs(mean_mhz - asked_mhz) <= TOLERANCE_MHZ:
            return ClockInForce(asked_mhz)
        return ClockInForce(mean_mhz, throttled=mean_mhz < asked_mhz and any(sample.reasons & THROTTLING for sample in seen))
