"""What becomes of a clock request that is due: issued, or dropped for a reason; and whether clocks obey.

All decisions of the controller are here, without its thread: times come from a clock that is handed in.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

from megatron_energy.gpus.actuators import Actuator
from megatron_energy.gpus.counts import ControllerReport, Counts, Quantiles
from megatron_energy.gpus.device import THROTTLING, EventReason
from megatron_energy.gpus.errors import GpuError, GpuLost, NoDriver, NoPermission, NotSupported
from megatron_energy.gpus.turns import NodeTurns

OWN_CHOICE_MHZ = 0
"""Instead of a clock: the GPU chooses, which under load means its highest."""

TOLERANCE_MHZ = 15  # one step of the supported clocks; settling was measured to within it on A800 (duihuhu/sglang)
_KEPT_DURATIONS = 4096  # for the quantiles of a report


class ClockReadings(Protocol):
    """What is read back of a GPU: a part of :class:`megatron_energy.gpus.device.Gpu`."""

    def sm_clock_mhz(self) -> int:
        """SM clock in force."""

    def event_reasons(self) -> EventReason:
        """Why it is."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a controller behaves.

    Attributes:
        lead_s: a raise is needed in force this long after it is due: how much earlier the plan anchors it.
        in_force_s: from the end of a call until the clock is in force, as measured. What is left of the lead is for the call itself:
            a lower is dropped when less than that is left until the next raise is due, as the raise would have to wait for its call.
        least_interval_s: a lower sooner than this after the previous call is dropped (NCCL became slower when clocks were set
            every 50 ms: nccl #1551). Raises never are.
        read_back_every: the clock in force is read before every so-many-th call; 0: never.
        retries: how often a failed raise is repeated. A failed lower is not: it costs energy only.
        retry_pause_s: before the first repetition; twice as long before each further one.
        failures_in_a_row: after so many the controller stops.
        turn_s: how long a lower waits for raises of other processes of the node.
    """

    lead_s: float = 0.0
    in_force_s: float = 0.0
    least_interval_s: float = 0.05
    read_back_every: int = 16
    retries: int = 2
    retry_pause_s: float = 0.005
    failures_in_a_row: int = 5
    turn_s: float = 0.02


class Issuer:
    """Carries out due requests of one GPU, one after another, in the calling thread.

    Args:
        actuator: how clocks are changed.
        settings: see there.
        readings: the GPU, to read its clock back; None: it is not read.
        turns: the node's other processes; None: there are none to be polite to.
        clock, sleep: seconds.
    """

    def __init__(
        self,
        actuator: Actuator,
        settings: Settings,
        readings: ClockReadings | None = None,
        turns: NodeTurns | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.counts = Counts()
        self.stopped = ""
        self._actuator, self._settings, self._readings, self._turns = actuator, settings, readings, turns
        self._clock, self._sleep = clock, sleep
        self._last_mhz: int | None = OWN_CHOICE_MHZ  # asked for with success; None after a failure: not known
        self._touched = False  # before the first call the GPU is as it was found, and that is not ours to reset
        self._last_s = -math.inf  # when that call ended
        self._failures_in_a_row = 0
        self._last_failure = self._last_disobeyed = ""
        self._delays_s: deque[float] = deque(maxlen=_KEPT_DURATIONS)
        self._calls_s: deque[float] = deque(maxlen=_KEPT_DURATIONS)

    def handle(self, clock_mhz: int, due_s: float, raise_in_s: float = math.inf) -> None:
        """Carry out a request that is due since ``due_s``; the next raise is expected ``raise_in_s`` after that."""
        if self.stopped:
            self.counts.ignored += 1
        elif clock_mhz == self._last_mhz:
            self.counts.unchanged += 1
        elif self._is_raise(clock_mhz):
            self._read_back()
            self._raise(clock_mhz, due_s)
        elif self._is_worth_while(due_s + raise_in_s):
            if self._turns is not None:
                self._turns.wait_for_raises(self._settings.turn_s)
            self._read_back()
            self._call(clock_mhz, due_s)

    def release(self) -> str:
        """Give the choice of the clock back, if it was ever taken; returns why that failed, or nothing. Failures are retried."""
        failed = ""
        for attempt in range(self._settings.retries + 1 if self._touched else 0):
            try:
                self._actuator.release()
            except GpuError as error:
                failed = self._last_failure = str(error)
                self.counts.failures += 1
                self._last_mhz = None
                self._sleep(self._settings.retry_pause_s * 2**attempt)
                continue
            self._last_mhz = OWN_CHOICE_MHZ
            return ""
        return failed

    def stop(self, reason: str) -> None:
        """Issue nothing any more, with the GPU's clock given back if that is possible. The first reason stays."""
        if self.stopped:
            return
        failed = self.release()
        self.stopped = f"{reason}; the clock could not be given back: {failed}" if failed else f"{reason}; the GPU chooses its clock"

    def report(self) -> ControllerReport:
        """All numbers so far."""
        return ControllerReport(
            counts=replace(self.counts),
            delay_s=Quantiles.of(list(self._delays_s)),
            call_s=Quantiles.of(list(self._calls_s)),
            last_clock_mhz=self._last_mhz,
            stopped=self.stopped,
            last_failure=self._last_failure,
            last_disobeyed=self._last_disobeyed,
        )

    def _is_raise(self, clock_mhz: int) -> bool:
        """Whether this is faster than what was asked for last; when that is not known, the GPU is taken to run at its own choice."""
        return _height(clock_mhz) > _height(self._last_mhz or OWN_CHOICE_MHZ) or clock_mhz == OWN_CHOICE_MHZ

    def _is_worth_while(self, next_raise_s: float) -> bool:
        """Whether a lower pays now."""
        now_s = self._clock()
        if next_raise_s - now_s < self._settings.lead_s - self._settings.in_force_s:
            self.counts.dropped_before_raise += 1
        elif now_s - self._last_s < self._settings.least_interval_s:
            self.counts.dropped_too_soon += 1
        else:
            return True
        return False

    def _raise(self, clock_mhz: int, due_s: float) -> None:
        announced: AbstractContextManager[None] = nullcontext() if self._turns is None else self._turns.raising()
        with announced:
            done = self._call(clock_mhz, due_s)
            for attempt in range(self._settings.retries):
                if done or self.stopped:
                    break
                self.counts.retried += 1
                self._sleep(self._settings.retry_pause_s * 2**attempt)
                done = self._call(clock_mhz, None)
        if not done or self._last_s + self._settings.in_force_s > due_s + self._settings.lead_s:
            self.counts.late_raises += 1

    def _call(self, clock_mhz: int, due_s: float | None) -> bool:
        """One call to the actuator; whether it succeeded. ``due_s`` None: a repetition."""
        begin_s = self._clock()
        if due_s is not None:
            self._delays_s.append(begin_s - due_s)
        self._touched = True
        try:
            self._actuator.release() if clock_mhz == OWN_CHOICE_MHZ else self._actuator.set_max_clock(clock_mhz)
        except GpuError as error:
            self._failed(error)
            return False
        self._last_s, self._last_mhz = self._clock(), clock_mhz
        self._calls_s.append(self._last_s - begin_s)
        self._failures_in_a_row = 0
        self.counts.issued += 1
        return True

    def _failed(self, error: GpuError) -> None:
        self.counts.failures += 1
        self._failures_in_a_row += 1
        self._last_failure = str(error)
        self._last_mhz = None
        if isinstance(error, NoPermission | NotSupported | GpuLost | NoDriver):
            self.stop(f"clock control stopped: {error}")
        elif self._failures_in_a_row >= self._settings.failures_in_a_row:
            self.stop(f"clock control stopped after {self._failures_in_a_row} failures in a row, the last: {error}")

    def _read_back(self) -> None:
        """Before the next call: has the previous one been obeyed? It has had all the time between the two."""
        every, settled_s = self._settings.read_back_every, self._last_s + self._settings.in_force_s
        if self._readings is None or not every or self.counts.issued % every or self._clock() < settled_s:
            return
        if not self._last_mhz:  # nothing was asked for, so there is nothing to obey
            return
        try:
            clock_mhz, reasons = self._readings.sm_clock_mhz(), self._readings.event_reasons()
        except GpuError as error:
            self._last_failure = f"the clock could not be read back: {error}"
            return
        self.counts.read_backs += 1
        self._judge(clock_mhz, reasons)

    def _judge(self, clock_mhz: int, reasons: EventReason) -> None:
        asked_mhz = self._last_mhz or 0
        if abs(clock_mhz - asked_mhz) <= TOLERANCE_MHZ:
            return
        if clock_mhz < asked_mhz and reasons & THROTTLING:
            self.counts.throttled += 1
        elif clock_mhz > asked_mhz or not reasons & EventReason.IDLE:
            self.counts.disobeyed += 1
            self._last_disobeyed = f"{clock_mhz} MHz in force where {asked_mhz} MHz were asked for (event reasons {int(reasons):#x})"
            self._last_mhz = None  # so that the same clock is asked for again


def _height(clock_mhz: int) -> float:
    """For comparing clocks: the GPU's own choice is the highest."""
    return math.inf if clock_mhz == OWN_CHOICE_MHZ else clock_mhz
