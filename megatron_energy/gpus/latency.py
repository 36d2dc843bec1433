"""How long a clock switch takes here, measured at start in a few seconds.

Three answers, each later than the one before: the call returns, NVML reports the new clock, a kernel runs at the new speed. And
what is different when all GPUs of a node switch together, since the driver serves them one after another. From these follows the
*lead*: how much earlier a raise must be requested.

Measured elsewhere (for comparison): a call takes 4.5 ms, p99 11 to 14 ms (V100-class and A800); all 8 GPUs of a node 46 ms; NVML
reports the clock 1 to 8 ms after the call; until it is in force 1 to 500 ms by GPU and target (arXiv 2502.20075).
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from megatron_energy.gpus.actuators import Actuator
from megatron_energy.gpus.counts import Quantiles
from megatron_energy.gpus.issuer import TOLERANCE_MHZ, ClockReadings

NODE_TURN_S = 0.006  # 8x A800-SXM4-80GB: 46 ms for all 8 GPUs, so 6 ms for each other GPU (duihuhu/sglang, Apache-2.0)
IN_FORCE_S = 0.008  # V100-class, 99th percentile over 22,000 requests: 28 ms by a method that takes 20 ms (published records)
LOAD_SETTLES_S = 0.2


@dataclass(frozen=True, slots=True)
class SwitchingLatency:
    """What was measured on one GPU.

    Attributes:
        call_s: one GPU's calls alone.
        reported_s: from the end of a call until NVML reports the clock. None: not seen (see ``notes``).
        kernel_s: from the end of a call until a kernel runs at the new speed. None: not measured.
        together_s: calls while all GPUs of the node switch. None: not measured.
        gpus_on_node: GPUs that switch together.
        notes: what was not measured, and why.
    """

    call_s: Quantiles
    reported_s: Quantiles | None
    kernel_s: Quantiles | None
    together_s: Quantiles | None
    gpus_on_node: int = 1
    notes: tuple[str, ...] = ()

    @property
    def in_force_s(self) -> float:
        """99th percentile from the end of a call until the clock is in force; a published figure where it was not measured."""
        known = self.kernel_s or self.reported_s
        return IN_FORCE_S if known is None else known.p99_s

    @property
    def lead_s(self) -> float:
        """How much earlier a raise is requested: 99th percentile of the call with the whole node switching, and until in force."""
        if self.together_s is not None:
            return max(self.together_s.p99_s, self.call_s.p99_s) + self.in_force_s
        return self.call_s.p99_s + NODE_TURN_S * (self.gpus_on_node - 1) + self.in_force_s


def slowest(measured: Iterable[SwitchingLatency]) -> SwitchingLatency:
    """Of several GPUs of a job, the one with the longest lead. Raises ValueError for none."""
    return max(measured, key=lambda latency: latency.lead_s)


class LatencyProbe:
    """Measures one GPU. The GPU should be busy: an idle one shows its lowest clock whatever was asked for.

    Args:
        actuator: how clocks are changed.
        readings: where they are read.
        clocks_mhz: a high and a lower supported clock.
        kernel_time_s: runs a short compute-bound kernel and returns its duration in s; None: speed is not measured.
        clock, sleep: seconds.
    """

    def __init__(
        self,
        actuator: Actuator,
        readings: ClockReadings,
        clocks_mhz: tuple[int, int],
        kernel_time_s: Callable[[], float] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if clocks_mhz[0] - clocks_mhz[1] <= 2 * TOLERANCE_MHZ:
            raise ValueError(f"a high and a clearly lower clock are needed, not {clocks_mhz}")
        self._actuator, self._readings, self._clocks_mhz = actuator, readings, clocks_mhz
        self._kernel_time_s, self._clock, self._sleep = kernel_time_s, clock, sleep
        self._notes: list[str] = []

    def measure(
        self,
        rounds: int = 10,
        barrier: Callable[[], None] | None = None,
        gpus_on_node: int = 1,
        turn: int = 0,
        rounds_together: int = 10,
        timeout_s: float = 0.5,
        poll_s: float = 0.0005,
    ) -> SwitchingLatency:
        """Switch down and up ``rounds`` times alone and ``rounds_together`` times with the node's other GPUs; then release.

        Takes about half a second per GPU of the node.

        Args:
            rounds: at least 2; even numbers switch up as often as down.
            barrier: waits for the node's other processes, which call this at the same time; None: not measured together.
            gpus_on_node: see :class:`SwitchingLatency`; as many processes must meet at the barrier.
            turn: this process's number on the node, from 0 on: the processes are alone one after another.
            rounds_together: see above.
            timeout_s: how long to wait for a clock to be in force.
            poll_s: between two readings.

        Raises GpuError and its kinds when the GPU cannot be read or controlled.
        """
        if not 0 <= turn < gpus_on_node:
            raise ValueError(f"turn {turn} of {gpus_on_node} GPUs")
        self._notes = []
        try:
            for number in range(gpus_on_node if barrier is not None else 1):
                if barrier is not None:
                    barrier()
                if barrier is None or number == turn:
                    calls_s, reported_s, kernels_s = self._alone(max(rounds, 2), timeout_s, poll_s)
            together_s = self._together(barrier, rounds_together)
        finally:
            self._actuator.release()
        call = Quantiles.of(calls_s)
        assert call is not None
        return SwitchingLatency(
            call,
            Quantiles.of(self._seen(reported_s, "NVML did not report the clock", timeout_s)),
            Quantiles.of(self._seen(kernels_s, "no kernel ran at the new speed", timeout_s)),
            Quantiles.of(together_s),
            gpus_on_node,
            tuple(self._notes),
        )

    def _alone(self, rounds: int, timeout_s: float, poll_s: float) -> tuple[list[float], list[float], list[float]]:
        """Calls, times until reported and times until a kernel shows the new speed, each in s; the latter two may be empty."""
        references_s, loaded = self._reference_kernels(), self._is_loaded()
        calls_s, reported_s, kernels_s = [], [], []
        for number in range(rounds):
            target = 1 - number % 2  # the lower clock first
            calls_s.append(self._switch(target))
            returned_s = self._clock()
            if loaded:
                reported_s.append(self._until(partial(self._shows, target), returned_s, timeout_s, poll_s))
            if references_s is not None:
                kernels_s.append(self._until(partial(self._runs_at, target, references_s), returned_s, timeout_s, 0.0))
        return calls_s, reported_s, kernels_s

    def _switch(self, target: int) -> float:
        """Ask for clock number ``target``; the length of the call."""
        begin_s = self._clock()
        self._actuator.set_max_clock(self._clocks_mhz[target])
        return self._clock() - begin_s

    def _is_loaded(self) -> bool:
        """Whether the clock that NVML reports follows the request, as it does under load only."""
        for target in (1, 0):
            self._switch(target)
            self._until(partial(self._shows, target), self._clock(), LOAD_SETTLES_S, 0.002)
            if not self._shows(target):
                self._notes.append(f"the GPU shows {self._readings.sm_clock_mhz()} MHz, not {self._clocks_mhz[target]}: idle or held down")
                return False
        return True

    def _shows(self, target: int) -> bool:
        return abs(self._readings.sm_clock_mhz() - self._clocks_mhz[target]) <= TOLERANCE_MHZ

    def _reference_kernels(self) -> tuple[float, float] | None:
        """Duration of the kernel at both clocks, in s; None when it cannot tell them apart."""
        if self._kernel_time_s is None:
            self._notes.append("no kernel was given to measure speeds with")
            return None
        found = []
        for target in (0, 1):
            self._switch(target)
            end_s = self._clock() + LOAD_SETTLES_S
            while self._clock() < end_s:
                duration_s = self._kernel_time_s()
            found.append(min(duration_s, self._kernel_time_s()))
        if found[1] < 1.05 * found[0]:
            self._notes.append("the kernel is as fast at the lower clock: it tells nothing about speeds")
            return None
        return found[0], found[1]

    def _runs_at(self, target: int, references_s: tuple[float, float]) -> bool:
        assert self._kernel_time_s is not None
        return abs(self._kernel_time_s() - references_s[target]) <= 0.25 * (references_s[1] - references_s[0])

    def _until(self, reached: Callable[[], bool], begin_s: float, timeout_s: float, poll_s: float) -> float:
        """Seconds from ``begin_s`` until ``reached``; infinite if that takes longer than ``timeout_s``."""
        while not reached():
            if self._clock() - begin_s > timeout_s:
                return float("inf")
            self._sleep(poll_s)
        return self._clock() - begin_s

    def _seen(self, durations_s: list[float], what: str, timeout_s: float) -> list[float]:
        """The finite ones; the others are noted."""
        seen_s = [duration_s for duration_s in durations_s if duration_s != float("inf")]
        if len(seen_s) < len(durations_s):
            self._notes.append(f"{what} within {timeout_s:g} s after {len(durations_s) - len(seen_s)} of {len(durations_s)} requests")
        return seen_s

    def _together(self, barrier: Callable[[], None] | None, rounds: int) -> list[float]:
        if barrier is None:
            self._notes.append("not measured with the node's other GPUs")
            return []
        durations_s = []
        for number in range(rounds):
            barrier()
            durations_s.append(self._switch(1 - number % 2))
        return durations_s
