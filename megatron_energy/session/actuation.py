"""How clocks of a GPU are changed here: by clockd, else by the driver itself with a watchdog, else not at all.

Where clockd runs, it decides: what it refuses is not tried around it.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeAlias

from megatron_energy.clockd.client import ClockdClient, Lease
from megatron_energy.clockd.errors import ClockdError, Unavailable
from megatron_energy.clockd.watchdog import Watchdog, WatchdogError
from megatron_energy.gpus.actuators import Actuator, NvmlActuator
from megatron_energy.gpus.errors import GpuError, NoPermission
from megatron_energy.gpus.nvml import NvmlGpu
from megatron_energy.gpus.preflight import Ability, clock_ability, control_permission

Kind: TypeAlias = Literal["clockd", "nvml", "none"]

TTL_S = 60.0
"""Of a lease: how long clocks may stay set if this process hangs. Its death ends the lease at once."""

CLOCKD_RUNS = "clockd runs here"

SIGKILL_MEANS: dict[Kind, str] = {
    "clockd": "clocks are set through clockd, which restores them whatever ends a rank, SIGKILL too",
    "nvml": "no clockd here: clocks are set through the driver, and a watchdog process restores them when a rank is killed; "
    "a SIGKILL of the whole control group leaves them locked until `nvidia-smi -rgc`",
    "none": "clocks are left as they are, so a SIGKILL leaves nothing to restore",
}


@dataclass(frozen=True)
class Way:
    """How the clocks of one GPU are changed, in plain words; travels to the home rank.

    Attributes:
        kind: see above.
        reason: why it is ``none``; empty otherwise.
        clocks_mhz: least and most clock that may be set; None: all that are supported.
    """

    kind: Kind
    reason: str = ""
    clocks_mhz: tuple[int, int] | None = None


class Hold:
    """One GPU whose clocks this process may change until :meth:`close`. ``actuator`` None: it may not."""

    def __init__(self, way: Way, actuator: Actuator | None = None, close: Callable[[], None] = lambda: None) -> None:
        self.way, self.actuator = way, actuator
        self._close = close

    def close(self) -> None:
        """Give the GPU back; returned when it is restored. Does nothing a second time."""
        close, self._close = self._close, lambda: None
        close()


def outlook() -> Ability:
    """Whether clocks can be changed from here, told without leasing or setting anything. Per GPU, :func:`take` decides."""
    try:
        with ClockdClient.connect() as clockd:
            gpus = clockd.status()["gpus"]
    except Unavailable as error:
        direct = control_permission()
        return direct if direct.possible else Ability(False, f"{error}; {direct.reason}")
    except ClockdError as error:
        return Ability(False, str(error))
    if not gpus:
        return Ability(False, "clockd's rules give this user no GPU")
    return Ability(True, CLOCKD_RUNS)


def take(gpu: NvmlGpu, on_lost: Callable[[str], None]) -> Hold:
    """Take a GPU in the best way there is. Never raises for a GPU that cannot be controlled.

    Args:
        gpu: the GPU.
        on_lost: told once, from another thread, why clocks must not be set any more.
    """
    try:
        if gpu.mig_enabled():
            return Hold(Way("none", clock_ability(gpu).reason))
        clockd = ClockdClient.connect()
    except Unavailable as error:
        return _take_directly(gpu, str(error))
    except GpuError as error:
        return Hold(Way("none", str(error)))
    try:
        return _take_leased(gpu, clockd, on_lost)
    except (ClockdError, GpuError) as error:
        clockd.close()
        return Hold(Way("none", str(error)))


def _take_leased(gpu: NvmlGpu, clockd: ClockdClient, on_lost: Callable[[str], None]) -> Hold:
    lease = clockd.lease([gpu.uuid], ttl_s=TTL_S)
    allowed = lease.gpus[gpu.uuid]["clocks_mhz"]
    top_mhz = max(gpu.supported_sm_clocks_mhz())
    if allowed is None or allowed[1] < top_mhz:
        which = "no clocks" if allowed is None else f"clocks up to {allowed[1]:.0f} MHz only, where a plan needs {top_mhz}"
        clockd.close()
        return Hold(Way("none", f"clockd's rules give this user {which} of {gpu.uuid}"))
    keeper = LeaseKeeper(lease, on_lost)

    def close() -> None:
        keeper.close()
        with suppress(ClockdError), clockd:  # the connection's end gives the GPU back in any case
            lease.release()

    return Hold(Way("clockd", clocks_mhz=(round(allowed[0]), round(allowed[1]))), lease.gpu(gpu.uuid), close)


class LeaseKeeper:
    """Renews a lease from a thread."""

    def __init__(self, lease: Lease, on_lost: Callable[[str], None]) -> None:
        self._lease, self._on_lost = lease, on_lost
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease-keeper", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(self._lease.ttl_s / 12):
            try:
                self._lease.renew_if_due()
            except ClockdError as error:
                if not self._stopping.is_set():
                    self._on_lost(str(error))
                return

    def close(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._thread.join()


class GuardedActuator:
    """Asks the driver, as long as a watchdog stands ready to undo it."""

    def __init__(self, actuator: Actuator, watchdog: Watchdog) -> None:
        self._actuator, self._watchdog = actuator, watchdog
        self._lowered = False  # by this process, and not given back

    def set_max_clock(self, clock_mhz: int) -> None:
        """See :class:`~megatron_energy.gpus.actuators.Actuator`; NoPermission once the watchdog has ended."""
        if not self._watchdog.alive:
            raise NoPermission("the watchdog that restores clocks after a crash has ended, so none are set any more")
        self._lowered = True
        self._actuator.set_max_clock(clock_mhz)

    def release(self) -> None:
        """Give the clock back, with or without a watchdog."""
        self._actuator.release()
        self._lowered = False

    def close(self) -> None:
        """End the watchdog, which gives the clock back. Raises GpuError where neither it nor this process could."""
        try:
            restored = not self._watchdog.close()
        except WatchdogError:
            restored = False
        if self._lowered and not restored:
            self.release()


def _take_directly(gpu: NvmlGpu, why_no_clockd: str) -> Hold:
    ability = clock_ability(gpu)
    if not ability.possible:
        return Hold(Way("none", f"{why_no_clockd}; {ability.reason}"))
    try:
        watchdog = Watchdog()
    except WatchdogError as error:
        return Hold(Way("none", f"{why_no_clockd}; {error}"))

    actuator = GuardedActuator(NvmlActuator(gpu), watchdog)
    try:
        watchdog.guard(gpu.uuid)
    except WatchdogError as error:
        actuator.close()
        return Hold(Way("none", f"{why_no_clockd}; {error}"))
    return Hold(Way("nvml"), actuator, actuator.close)
