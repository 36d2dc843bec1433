"""Readings of one GPU from a thread of its own: when its energy counter stepped, and the clock in force then.

A counter steps every 20 to 100 ms. What it gained between two steps is exact, so each step is kept with the time at which it was
seen. The thread learns the counter's period, sleeps through most of it, and looks often where the next step is due: a few
readings per step, and a step is seen a millisecond or two late. Where fewer steps will do, it sleeps through several of them.
A GPU without a counter has its power integrated instead.
"""

import itertools
import statistics
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from megatron_energy.gpus.device import EventReason, Gpu
from megatron_energy.gpus.errors import GpuError

POLL_S = 0.002  # while a step is waited for
POWER_POLL_S = 0.1  # the power sensor of A100 and H100 is renewed every 100 ms
LEARNING_STEPS = 4  # steps seen before the period is trusted
ASLEEP = 0.9  # share of the period that is slept through
ABOUT = 1.05  # steps kept may be so much further apart than asked for: five periods of 20.3 ms are 100 ms
FAILED_POLL_S = 1.0  # until a GPU that did not answer is asked again
KEPT = 100_000  # samples at most: hours of them


@dataclass(frozen=True, slots=True)
class Sample:
    """The GPU at one step of its counter.

    Attributes:
        time_s: host time, monotonic.
        energy_mj: energy since some moment; None begins a gap (the counter fell, or the GPU did not answer).
        clock_mhz: SM clock in force.
        reasons: why.
    """

    time_s: float
    energy_mj: int | None
    clock_mhz: int = 0
    reasons: EventReason = EventReason.NONE


class GpuSampler:
    """Samples of one GPU.

    Args:
        gpu: the GPU.
        clock: seconds, monotonic.
    """

    def __init__(self, gpu: Gpu, clock: Callable[[], float] = time.monotonic) -> None:
        self._gpu, self._clock = gpu, clock
        self._samples: deque[Sample] = deque(maxlen=KEPT)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._has_counter = True
        self._last_mj: int | None = None  # the counter as last read
        self._power: tuple[float, float] | None = None  # (s, W) as last read, where there is no counter
        self._integral_mj = 0.0
        self._spacing_s = 0.0  # steps closer together than this are slept through
        self._slept_through = False  # so the counter may have stepped at any time since it was last read
        self.period_s: float | None = None

    @property
    def source(self) -> str:
        """Where energies come from, in words."""
        return (
            "energy counter" if self._has_counter else f"integrated power, because this GPU has no energy counter; {self._gpu.power_source}"
        )

    def open(self) -> None:
        """Find the sensor and start the thread. Raises GpuError when the GPU cannot be read."""
        self._last_mj = self._gpu.total_energy_mj()
        self._has_counter = self._last_mj is not None
        self._thread = threading.Thread(target=self._run, name="gpu-sampler", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; the samples stay. Does nothing where it was not started."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(FAILED_POLL_S)

    def rest(self, spacing_s: float) -> None:
        """From now on sleep through steps as long as those kept are about this far apart, in s, or less; 0: keep every step.

        Energies between two times remain exact to within a step that is kept, and those of consecutive stretches still add up to the
        counter's. Does nothing where power is integrated.
        """
        if spacing_s > 0 and not self._spacing_s and self.period_s is not None:
            self._refine_period(self.period_s)
        self._spacing_s = spacing_s

    def poll(self) -> float:
        """Read the GPU once; seconds until it should be read again."""
        try:
            return self._poll_counter() if self._has_counter else self._poll_power()
        except GpuError:
            self._begin_gap(self._clock())
            return FAILED_POLL_S

    def samples(self) -> list[Sample]:
        """All samples that are kept, in order."""
        with self._lock:
            return list(self._samples)

    def forget_before(self, time_s: float) -> None:
        """Drop samples before this time, but for the last one."""
        with self._lock:
            while len(self._samples) > 1 and self._samples[1].time_s <= time_s:
                self._samples.popleft()

    def _run(self) -> None:
        while not self._stopping.wait(self.poll()):
            continue

    def _poll_counter(self) -> float:
        energy_mj, now_s = self._gpu.total_energy_mj(), self._clock()
        if energy_mj is None or (self._last_mj is not None and energy_mj < self._last_mj):
            self._begin_gap(now_s)
        if energy_mj is None:
            return FAILED_POLL_S
        before_mj, self._last_mj = self._last_mj, energy_mj
        unseen, self._slept_through = before_mj is None or self._slept_through, False
        if unseen or energy_mj == before_mj:  # the first reading is no step
            return POLL_S
        self._keep(now_s, energy_mj)
        self._learn_period()
        return self._until_next_s()

    def _until_next_s(self) -> float:
        """After a step: how long to sleep until just before the next one that is wanted."""
        if self.period_s is None:
            return POLL_S
        skipped = max(int(ABOUT * self._spacing_s / self.period_s) - 1, 0)
        self._slept_through = skipped > 0
        early_s = POLL_S if skipped else 0.0  # the last one was seen so late at most
        return (skipped + ASLEEP) * self.period_s - early_s

    def _poll_power(self) -> float:
        power_w, now_s = self._gpu.power_w(), self._clock()
        if self._power is not None:
            before_s, before_w = self._power
            self._integral_mj += 1e3 * (now_s - before_s) * (power_w + before_w) / 2
        self._power = (now_s, power_w)
        self._keep(now_s, round(self._integral_mj))
        return POWER_POLL_S

    def _keep(self, time_s: float, energy_mj: int) -> None:
        sample = Sample(time_s, energy_mj, self._gpu.sm_clock_mhz(), self._gpu.event_reasons())
        with self._lock:
            self._samples.append(sample)

    def _begin_gap(self, time_s: float) -> None:
        self._last_mj = self._power = None
        with self._lock:
            if self._samples and self._samples[-1].energy_mj is not None:
                self._samples.append(Sample(time_s, None))

    def _learn_period(self) -> None:
        """The median distance of the first steps seen."""
        if self.period_s is not None or len(self._samples) < LEARNING_STEPS:
            return
        times_s = [sample.time_s for sample in self.samples()]
        self.period_s = statistics.median(after - before for before, after in itertools.pairwise(times_s))

    def _refine_period(self, period_s: float) -> None:
        """Over all steps that are kept: an error in the period counts as often as steps are slept through."""
        samples = itertools.pairwise(self.samples())
        gaps_s = [after.time_s - before.time_s for before, after in samples if None not in (before.energy_mj, after.energy_mj)]
        periods = [round(gap_s / period_s) for gap_s in gaps_s]
        if sum(periods) >= LEARNING_STEPS:
            self.period_s = sum(gaps_s) / sum(periods)


def energy_j(samples: Sequence[Sample], start_s: float, end_s: float) -> float:
    """Joules between two times, drawn straight between the steps around them; NaN across a gap or with fewer than two steps.

    Beyond the last step the power of the last one goes on. So the joules of consecutive iterations add up to what the counter
    gained, although none of them ends at a step.
    """
    after = bisect_left(samples, end_s, key=lambda sample: sample.time_s)
    before = bisect_left(samples, start_s, key=lambda sample: sample.time_s)
    around = samples[max(min(before - 1, len(samples) - 2), 0) : max(after + 1, 2)]
    known = [(sample.time_s, sample.energy_mj) for sample in around if sample.energy_mj is not None]
    if len(known) < 2 or len(known) < len(around):
        return float("nan")
    return (_at(known, end_s) - _at(known, start_s)) / 1e3


def _at(known: Sequence[tuple[float, int]], time_s: float) -> float:
    """Energy in mJ at a time, on the line through the two neighbouring steps, or through the two nearest ones."""
    place = min(max(bisect_left(known, time_s, key=lambda step: step[0]), 1), len(known) - 1)
    (left_s, left_mj), (right_s, right_mj) = known[place - 1], known[place]
    return left_mj + (right_mj - left_mj) * (time_s - left_s) / (right_s - left_s)
