"""How long clock switches take on the nodes of this job: measured by all ranks together before the first iteration."""

import time
from collections.abc import Callable

from megatron_energy.gpus.actuators import Actuator
from megatron_energy.gpus.errors import GpuError
from megatron_energy.gpus.latency import LOAD_SETTLES_S, LatencyProbe, SwitchingLatency
from megatron_energy.gpus.nvml import NvmlGpu
from megatron_energy.session.clock_watch import lock_as_found
from megatron_energy.session.exchange import Exchange

ROUNDS, ROUNDS_TOGETHER = 6, 10


class _Meetings:
    """Barriers over all ranks, of which every rank has to come to the same number."""

    def __init__(self, exchange: Exchange, count: int) -> None:
        self._exchange, self._left = exchange, count

    def meet(self) -> None:
        """Wait for the others."""
        self._left -= 1
        self._exchange.gather(None)
        self._exchange.broadcast(None)

    def rest(self) -> None:
        """Come to those that are left."""
        while self._left > 0:
            self.meet()


def measure_switching(
    make_probe: Callable[[], LatencyProbe], exchange: Exchange, turn: int, turns: int, rounds: int = ROUNDS
) -> SwitchingLatency | str:
    """Measure this rank's GPU, alone and with the others of its node; or why that failed. All ranks call it at the same place.

    Args:
        make_probe: for this rank's GPU.
        exchange: to the other ranks.
        turn: this rank's number on its node.
        turns: ranks of the fullest node.
        rounds: switches of a GPU alone.
    """
    meetings = _Meetings(exchange, turns + ROUNDS_TOGETHER)
    try:
        return make_probe().measure(rounds, meetings.meet, turns, turn, ROUNDS_TOGETHER)
    except (GpuError, ValueError) as error:
        return str(error)
    finally:
        meetings.rest()


def probe(
    actuator: Actuator, gpu: NvmlGpu, clocks_mhz: tuple[int, int], kernel_time_s: Callable[[], float] | None, restorable: bool
) -> LatencyProbe:
    """A probe of this rank's GPU.

    Args:
        actuator: of the GPU.
        gpu: the GPU.
        clocks_mhz: a high and a lower clock, in MHz.
        kernel_time_s: runs a short kernel and returns its duration in s; None: there is none here.
        restorable: whether somebody will lock the clock again after the run, if it is locked now.

    Raises:
        GpuError: it is locked, and nobody would.
    """
    kernel_time_s = _working(kernel_time_s)
    if kernel_time_s is not None:
        end_s = time.monotonic() + LOAD_SETTLES_S
        while time.monotonic() < end_s:
            kernel_time_s()
    lock = "" if restorable else lock_as_found(gpu, clocks_mhz[0], loaded=kernel_time_s is not None)
    if lock:
        raise GpuError(f"somebody has locked its clock ({lock}): a lock cannot be read, so it could not be put back after the run")
    return LatencyProbe(actuator, gpu, clocks_mhz, kernel_time_s)


def _working(kernel_time_s: Callable[[], float] | None) -> Callable[[], float] | None:
    """The kernel, if it runs; for want of memory it may not."""
    try:
        if kernel_time_s is not None:
            kernel_time_s()
    except GpuError:
        return None
    return kernel_time_s
