"""Energy of one GPU over time, from its counter or, where it has none, from its power.

Three rules learnt from other meters:

* a counter that falls or is missing makes a *gap* (``energy_j`` is None), never a huge number and never a silent zero;
* a meter that was not opened does nothing, so that code which laps or closes it unconditionally is safe;
* one meter per GPU (:func:`meter_for`), so that several users in one process do not count a GPU twice.

Counters step every 20 to 100 ms (V100 20 ms, A100 and H100 100 ms), so a lap of a second carries up to 10% error from
its two ends; the errors of consecutive laps cancel.
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from megatron_energy.gpus.device import Gpu, Scope
from megatron_energy.gpus.errors import GpuError

Source: TypeAlias = Literal["counter", "power"]

POLL_S = 0.1  # the power sensor of A100 and H100 updates every 100 ms (data sheet of sensors: nvml_power_sensor, driver 525-535)
LONGEST_SAMPLE_DISTANCE_S = 20 * POLL_S  # power samples further apart than this are no measurement of what lies between


@dataclass(frozen=True, slots=True)
class Lap:
    """Energy of one GPU between two readings.

    Attributes:
        start_s: time of the earlier reading, on the meter's clock.
        end_s: time of the later one.
        energy_j: joules used between them; None when they are not known (a gap).
        reason: why it is a gap; empty otherwise.
    """

    start_s: float
    end_s: float
    energy_j: float | None
    reason: str = ""

    @property
    def power_w(self) -> float | None:
        """Mean power, or None for a gap or an empty lap."""
        if self.energy_j is None or self.end_s <= self.start_s:
            return None
        return self.energy_j / (self.end_s - self.start_s)


class EnergyMeter:
    """Laps of energy of one GPU.

    Example::

        meter = EnergyMeter(gpu)
        meter.open()
        ...                      # one iteration
        lap = meter.lap()        # Lap(start_s=..., end_s=..., energy_j=412.7)
    """

    def __init__(self, gpu: Gpu, clock: Callable[[], float] = time.monotonic, *, background: bool = True) -> None:
        """``clock`` gives seconds. ``background``: poll the power from a thread when there is no counter."""
        self.gpu = gpu
        self.gaps = 0
        self.total_j = 0.0
        self._clock = clock
        self._background = background
        self._source: Source | None = None
        self._start_s = 0.0
        self._counter_mj: int | None = None
        self._integral: _PowerIntegral | None = None

    @property
    def is_open(self) -> bool:
        """Whether the meter is running."""
        return self._source is not None

    @property
    def source(self) -> Source | None:
        """What the energy comes from; None while the meter is not open."""
        return self._source

    @property
    def source_reason(self) -> str:
        """The source in words, with the reason where it is not the counter."""
        if self._source is None:
            return "not opened"
        if self._source == "counter":
            return "energy counter"
        return f"integrated power, because this GPU has no energy counter; sensor: {self.gpu.power_source}"

    @property
    def scope(self) -> Scope:
        """What the energy covers: the GPU, or the whole module."""
        return self.gpu.energy_scope if self._source != "power" else "gpu"

    def open(self) -> None:
        """Start the first lap. An open meter stays as it is. Raises GpuError when the GPU cannot be read at all."""
        if self.is_open:
            return
        self._start_s = self._clock()
        self._counter_mj = self.gpu.total_energy_mj()
        self._source = "power" if self._counter_mj is None else "counter"
        if self._source == "power":
            self._integral = _PowerIntegral(self.gpu, self._clock)
            if self._background:
                self._integral.start()

    def poll(self) -> None:
        """Take one power sample where the energy comes from power; does nothing otherwise."""
        if self._integral is not None:
            self._integral.sample()

    def lap(self) -> Lap | None:
        """End the current lap and start the next; None when the meter is not open."""
        if not self.is_open:
            return None
        start_s, end_s = self._start_s, self._clock()
        self._start_s = end_s
        try:
            energy_j, reason = self._counter_lap() if self._integral is None else self._integral.lap()
        except GpuError as error:
            self._counter_mj = None
            energy_j, reason = None, str(error)
        if energy_j is None:
            self.gaps += 1
        else:
            self.total_j += energy_j
        return Lap(start_s, end_s, energy_j, reason)

    def _counter_lap(self) -> tuple[float | None, str]:
        before_mj, self._counter_mj = self._counter_mj, self.gpu.total_energy_mj()
        if self._counter_mj is None:
            return None, "the energy counter did not answer"
        if before_mj is None:
            return None, "the energy counter did not answer at the start of the lap"
        if self._counter_mj < before_mj:
            return None, f"the energy counter fell from {before_mj} to {self._counter_mj} mJ (driver reloaded or GPU reset?)"
        return (self._counter_mj - before_mj) / 1000, ""

    def close(self) -> None:
        """Stop; a meter that is not open stays as it is. It may be opened again."""
        if self._integral is not None:
            self._integral.stop()
        self._source, self._integral, self._counter_mj = None, None, None


class _PowerIntegral:
    """Trapezoidal integral of power samples over a meter's lap."""

    def __init__(self, gpu: Gpu, clock: Callable[[], float]) -> None:
        self._gpu = gpu
        self._clock = clock
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._last: tuple[float, float] | None = None  # (s, W)
        self._sum_j = 0.0
        self._reason = ""
        self.sample()

    def sample(self) -> None:
        """Read the power once and add the trapezoid since the sample before."""
        with self._lock:
            try:
                now = (self._clock(), self._gpu.power_w())
            except GpuError as error:
                self._last, self._reason = None, str(error)
                return
            if self._last is not None:
                distance_s = now[0] - self._last[0]
                if distance_s > LONGEST_SAMPLE_DISTANCE_S:
                    self._reason = f"power was not sampled for {distance_s:.1f} s"
                self._sum_j += distance_s * (now[1] + self._last[1]) / 2
            self._last = now

    def lap(self) -> tuple[float | None, str]:
        """Joules since the previous lap, or None and the reason."""
        self.sample()
        with self._lock:
            energy_j, reason = self._sum_j, self._reason
            self._sum_j, self._reason = 0.0, ""
        return (None, reason) if reason else (energy_j, "")

    def start(self) -> None:
        """Sample from a thread until :meth:`stop`."""
        self._thread = threading.Thread(target=self._run, name=f"power-{self._gpu.uuid}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(POLL_S):
            self.sample()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()


_meters: dict[tuple[int, str], EnergyMeter] = {}


def meter_for(gpu: Gpu) -> EnergyMeter:
    """This process's meter of a GPU: the same object for the same UUID, so that no joule is counted twice."""
    return _meters.setdefault((os.getpid(), gpu.uuid), EnergyMeter(gpu))
