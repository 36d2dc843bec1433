"""Whether somebody else locks a GPU's clocks: what can be told of that, as NVML reads no locked range back.

A GPU has one locked range, and the last one who set it wins. So another program shows in the clock under load, and only there: above the
request, our lock has been changed or removed; below it, without a reason such as the power limit, a lower lock than ours is in force.
One reading proves nothing (a switch may take longer than measured), many in a row do.
"""

from collections import deque
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from megatron_energy.gpus.device import THROTTLING, EventReason
from megatron_energy.gpus.errors import GpuError
from megatron_energy.gpus.issuer import TOLERANCE_MHZ
from megatron_energy.gpus.nvml import NvmlGpu
from megatron_energy.gpus.sampler import Sample
from megatron_energy.session.clock_trace import ClockTrace

Kind: TypeAlias = Literal["obeyed", "above", "below"]

REMEMBERED = 20
"""Readings under load, at a steady request; they come with the steps of the energy counter that are seen, under a plan one in 100 ms."""

LEAST = 8
"""Of them, at least so many, and half, have to be off in the same way."""

MARGIN_S = 0.02
"""A reading counts if the clock has been asked for this long before it and is still asked for this long after it."""

OTHER_REASONS = THROTTLING | EventReason.SYNC_BOOST | EventReason.DISPLAY | EventReason.IDLE
"""Reasons of the GPU's own for a clock below the request."""

LOADED = 0.5
"""Utilisation from which on a GPU's clock shows what it may run at."""


class Reading(NamedTuple):
    """The clock once under load, and what was asked for."""

    kind: Kind
    clock_mhz: int
    asked_mhz: int
    reasons: EventReason


class ClockWatch:
    """Compares clocks under load with those asked for.

    Args:
        top_mhz: the GPU's maximum clock.
    """

    def __init__(self, top_mhz: int) -> None:
        self._top_mhz = self._reached_mhz = top_mhz
        self._own_choice: deque[int] = deque(maxlen=REMEMBERED)
        self._readings: deque[Reading] = deque(maxlen=REMEMBERED)
        self._seen_s = float("-inf")

    def look(self, trace: ClockTrace, samples: Sequence[Sample], busy: Sequence[tuple[float, float]]) -> None:
        """Take in what is new.

        Args:
            trace: what was asked for.
            samples: in order; those seen before are left out.
            busy: begins and ends of operations, in s, in order: the GPU has work to do in between.
        """
        new = [sample for sample in samples if sample.time_s > self._seen_s]
        place = 0
        for sample in new:
            while place < len(busy) and busy[place][1] < sample.time_s:
                place += 1
            if place < len(busy) and busy[place][0] <= sample.time_s and sample.energy_mj is not None:
                self._take(sample, trace.asked_mhz(sample.time_s - MARGIN_S, sample.time_s + MARGIN_S))
        if busy:
            self._seen_s = busy[-1][1]

    def _take(self, sample: Sample, asked_mhz: int | None) -> None:
        if asked_mhz is None or (sample.clock_mhz < asked_mhz and sample.reasons & OTHER_REASONS):
            return
        if asked_mhz == self._top_mhz:  # what it reaches by its own choice may lie below what it supports
            self._own_choice.append(sample.clock_mhz)
            self._reached_mhz = max(self._own_choice) if len(self._own_choice) >= LEAST else self._reached_mhz
            return
        kind: Kind = "obeyed"
        if sample.clock_mhz > asked_mhz + TOLERANCE_MHZ:
            kind = "above"
        elif sample.clock_mhz < min(asked_mhz, self._reached_mhz) - TOLERANCE_MHZ:
            kind = "below"
        self._readings.append(Reading(kind, sample.clock_mhz, asked_mhz, sample.reasons))

    def found(self) -> str:
        """Who else seems to set this GPU's clock, with the evidence, in words; empty: nobody. What was found is then forgotten."""
        for kind, means in (("above", "its lock has been changed or removed"), ("below", "a lower lock than ours is in force")):
            off = [reading for reading in self._readings if reading.kind == kind]
            if len(off) >= max(LEAST, len(self._readings) / 2):
                last, total = off[-1], len(self._readings)
                self._readings.clear()
                return (
                    f"clock {last.clock_mhz} MHz where {last.asked_mhz} MHz were asked for, in {len(off)} of {total} readings under load, "
                    f"event reasons {int(last.reasons):#x}: {means}"
                )
        return ""


def lock_as_found(gpu: NvmlGpu, top_mhz: int, loaded: bool = False) -> str:
    """Whether somebody has locked the clock of a GPU under load before anything was asked for here, in words; empty: nobody, or it idles.

    A locked range cannot be read, so it could not be put back either.

    Args:
        gpu: the GPU.
        top_mhz: its maximum clock.
        loaded: it has just been given work; otherwise its utilisation tells.

    Raises:
        GpuError: it cannot be read.
    """
    clock_mhz, reasons = gpu.sm_clock_mhz(), gpu.event_reasons()
    held = EventReason.LOCKED_CLOCKS in reasons and not reasons & OTHER_REASONS and clock_mhz < top_mhz - TOLERANCE_MHZ
    return f"clock {clock_mhz} of {top_mhz} MHz under load, event reasons {int(reasons):#x}" if held and (loaded or _loaded(gpu)) else ""


def _loaded(gpu: NvmlGpu) -> bool:
    try:
        return gpu.utilisation() >= LOADED
    except GpuError:
        return False
