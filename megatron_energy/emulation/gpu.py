"""One emulated GPU: how its clock, power and energy counter behave in wall time, and what it shows in virtual time.

In wall time a *declared load* (shares of compute and memory, 0 to 1) keeps the GPU busy. Its power is piecewise
constant: it changes only when the load, the clock range or the power limit changes, so energy is an exact integral and
a reading is a pure function of the time. Readings are what a real GPU's would be: the energy counter steps, and the power
sensor shows a mean over its window that is renewed now and then. In virtual time the values are the settled ones that
:meth:`~megatron_energy.emulation.state.NodeState.advance` stored.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

from megatron_energy.emulation.catalog import GpuModel, load
from megatron_energy.emulation.physics import capped_clock_mhz, power_w
from megatron_energy.emulation.state import Fault, GpuRecord, NodeState
from megatron_energy.gpus.device import EventReason

AVERAGE_WINDOW_S = 1.0  # nvml.h, nvmlDeviceGetPowerUsage: averaged over 1 s from Ampere on, except GA100

_PHASE_S = 0.0137  # the counters of a node do not step together; any offset that is no divisor of their periods will do


class EmulatedGpu:
    """Behaviour of one GPU of a node. ``clock`` and ``sleep`` (seconds) stand for the wall clock; virtual time needs neither."""

    def __init__(
        self, node: NodeState, index: int, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.node = node
        self.index = index
        self.model: GpuModel = load(node.model)
        self._clock = clock
        self._sleep = sleep

    @property
    def time_functions(self) -> tuple[Callable[[float], None], Callable[[], float]]:
        """How this GPU waits and what time it is: (sleep, clock), in s."""
        return self._sleep, self._clock

    @property
    def uuid(self) -> str:
        """``GPU-...``."""
        return self.node.uuid(self.index)

    @property
    def _virtual(self) -> bool:
        return self.node.time_source == "virtual"

    def record(self) -> GpuRecord:
        """A copy of the stored state, in wall time brought forward to now."""
        record = self.node.gpu(self.index)
        if not self._virtual:
            self._bring_forward(record, self._clock())
        return record

    def set_load(self, compute: float, memory: float = 0.0, owner_pid: int = 0) -> None:
        """Declare what the GPU does from now on (wall time): shares of its compute and memory rates, and whose process it is."""
        if not (0 <= compute <= 1 and 0 <= memory <= 1):
            raise ValueError(f"load is a share from 0 to 1, not compute={compute}, memory={memory}")
        with self._changing() as record:
            record.compute, record.memory, record.owner_pid = compute, memory, owner_pid

    def lock_clocks(self, min_mhz: int, max_mhz: int) -> None:
        """Keep the SM clock in [min, max] MHz; in wall time it takes the driver's time and comes into force later."""
        self._request(self.model.supported_clock_mhz(min_mhz), self.model.supported_clock_mhz(max_mhz))

    def reset_clocks(self) -> None:
        """Remove the lock."""
        self._request(0, 0)

    def _request(self, min_mhz: int, max_mhz: int) -> None:
        if not self._virtual:
            with self.node.driver_lock():
                self._sleep(self.model.request_lock_s)
        with self._changing() as record:
            record.locks_set += 1
            if record.faults & Fault.IGNORES_LOCKS:
                return
            record.locked_min_mhz, record.locked_max_mhz = min_mhz, max_mhz
            record.pending_at_s = record.since_s + self.model.in_force_s

    def set_power_limit_mw(self, limit_mw: int) -> None:
        """Set the power limit; in force at once."""
        with self._changing() as record:
            record.power_limit_mw = limit_mw

    @contextmanager
    def _changing(self) -> Iterator[GpuRecord]:
        """Edit the stored state, brought forward to now first, so that what changes counts from now on."""
        with self.node.edit(self.index) as record:
            if not self._virtual:
                self._bring_forward(record, self._clock())
            yield record

    def clock_mhz(self) -> int:
        """SM clock in force."""
        record = self.record()
        return (record.clock_mhz or self.model.sm_clock_min_mhz) if self._virtual else self._state(record)[0]

    def power_w(self) -> float:
        """Power now, as no sensor shows it."""
        record = self.record()
        return (record.power_w or self.model.idle_power_w) if self._virtual else self._state(record)[1]

    def instant_power_w(self) -> float:
        """What the power sensor shows: the mean over its window, renewed every ``sensor_update_s`` of the model."""
        return self.power_w() if self._virtual else self.record().shown_instant_w

    def average_power_w(self) -> float:
        """What a lagging reading shows: the mean of the last second, or of the sensor's window on GA100; renewed as often."""
        return self.power_w() if self._virtual else self.record().shown_average_w

    def energy_mj(self) -> int:
        """The energy counter; it steps every ``counter_update_s`` of the model."""
        return self.record().counter_mj

    def utilisation(self) -> tuple[float, float]:
        """Shares of time with kernels running and with memory traffic."""
        record = self.record()
        return max(record.compute, record.memory), record.memory

    def reasons(self) -> EventReason:
        """NVML's event reasons."""
        record = self.record()
        if self._virtual:
            return EventReason(record.reasons)
        if not record.compute and not record.memory:
            return EventReason.IDLE
        clock_mhz, wanted_mhz = self._state(record)[0], self._wanted_mhz(record)
        reasons = EventReason.POWER_CAP if clock_mhz < wanted_mhz else EventReason.NONE
        if wanted_mhz < self.model.sm_clock_max_mhz:
            reasons |= EventReason.LOCKED_CLOCKS
        return reasons

    def temperature_c(self) -> float:
        """Steady temperature at the present power."""
        return self.model.ambient_c + self.model.celsius_per_w * self.power_w()

    def _wanted_mhz(self, record: GpuRecord) -> int:
        """The clock under load if power allowed it."""
        return record.active_max_mhz or self.model.sm_clock_max_mhz

    def _state(self, record: GpuRecord) -> tuple[int, float]:
        """Clock in MHz and power in W of a record whose active range is in force."""
        lowest_mhz = record.active_min_mhz or self.model.sm_clock_min_mhz
        limit_w = (record.power_limit_mw or round(self.model.power_limit_default_w * 1000)) / 1000
        return _clock_and_power(self.model.key, lowest_mhz, self._wanted_mhz(record), record.compute, record.memory, limit_w)

    def _bring_forward(self, record: GpuRecord, now_s: float) -> None:
        """Change ``record`` to what it is at ``now_s``: energy added, the counter as it shows, a due lock in force."""
        if now_s < record.since_s:  # the wall clock began anew: the host was rebooted since
            record.since_s, record.pending_at_s = now_s, min(record.pending_at_s, now_s)
        locked = (record.locked_min_mhz, record.locked_max_mhz)
        if (record.active_min_mhz, record.active_max_mhz) != locked and record.pending_at_s <= now_s:
            self._accrue(record, max(record.pending_at_s, record.since_s))
            record.active_min_mhz, record.active_max_mhz = locked
        self._accrue(record, now_s)

    def _accrue(self, record: GpuRecord, now_s: float) -> None:
        """Add what the time from ``since_s`` to ``now_s`` brings at constant power."""
        power, elapsed_s = self._state(record)[1], now_s - record.since_s
        stepped_s = self._last_step_s(now_s, self.model.counter_update_s)
        if stepped_s > record.since_s:
            record.counter_mj = int(record.energy_mj + 1000 * power * (stepped_s - record.since_s))
        self._sense(record, power, now_s)
        record.energy_mj += 1000 * power * elapsed_s
        record.since_s = now_s

    def _sense(self, record: GpuRecord, steady_w: float, now_s: float) -> None:
        """Bring the power readings forward at constant power: both means, and what is shown of them."""
        window_s = self.model.sensor_window_s
        average_s = window_s if "A100" in self.model.name else AVERAGE_WINDOW_S
        average_w, window_w = (steady_w if mean < 0 else mean for mean in (record.average_power_w, record.window_power_w))
        if record.shown_instant_w < 0:
            record.shown_average_w, record.shown_instant_w = average_w, window_w
        renewed_s = self._last_step_s(now_s, self.model.sensor_update_s)
        if renewed_s > record.since_s:
            record.shown_average_w = _mean(average_w, steady_w, renewed_s - record.since_s, average_s)
            record.shown_instant_w = _mean(window_w, steady_w, renewed_s - record.since_s, window_s)
        record.average_power_w = _mean(average_w, steady_w, now_s - record.since_s, average_s)
        record.window_power_w = _mean(window_w, steady_w, now_s - record.since_s, window_s)

    def _last_step_s(self, now_s: float, period_s: float) -> float:
        """When something that is renewed every ``period_s`` was renewed last."""
        phase_s = self.index * _PHASE_S
        return math.floor((now_s - phase_s) / period_s) * period_s + phase_s


def _mean(before_w: float, steady_w: float, elapsed_s: float, window_s: float) -> float:
    """Mean over a window of which the last ``elapsed_s`` were at ``steady_w`` and the rest at ``before_w``."""
    return steady_w + (before_w - steady_w) * max(0.0, 1 - elapsed_s / window_s)


@lru_cache(maxsize=4096)
def _clock_and_power(key: str, lowest_mhz: int, wanted_mhz: int, compute: float, memory: float, limit_w: float) -> tuple[int, float]:
    """Clock in MHz and power in W under a load; without one the GPU falls to the lowest clock it may have."""
    model = load(key)
    clock_mhz = capped_clock_mhz(model, wanted_mhz, limit_w, compute, memory) if compute or memory else lowest_mhz
    return clock_mhz, power_w(model, clock_mhz, compute, memory)
