"""Changing a GPU, and undoing it until it is undone."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from megatron_energy.clockd.messages import Refusal
from megatron_energy.clockd.rules import Range
from megatron_energy.clockd.saved import Saved, Store
from megatron_energy.gpus.errors import GpuError, NoDriver, NotSupported

FIRST_RETRY_S = 0.1
LONGEST_RETRY_S = 30.0
POWER_TOLERANCE_MW = 1000  # drivers may round a limit to whole watts


class Device(Protocol):
    """What is needed of a GPU; :class:`megatron_energy.clockd.hardware.Hardware` is one."""

    def clocks_mhz(self) -> tuple[int, ...]:
        """Supported SM clocks, highest first."""

    def lock(self, least_mhz: int, most_mhz: int) -> None:
        """Keep the SM clock in a range."""

    def unlock(self) -> None:
        """Remove the lock."""

    def power_limit_mw(self) -> int:
        """The power limit as set."""

    def power_bounds_mw(self) -> tuple[int, int]:
        """The least and the highest power limit there is."""

    def set_power_limit_mw(self, limit_mw: int) -> None:
        """Set the power limit."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A GPU that could not be restored yet. ``due_s``: when it is tried again, on clockd's clock."""

    attempts: int
    due_s: float
    reason: str


class Controls:
    """All GPUs of the host.

    Args:
        gpus: UUID -> GPU.
        store: where it is kept what has to be undone.
        site_mhz: the range that unleased GPUs are locked to; None: not locked.
        log: called with an event's name and its facts.
        clock: monotonic seconds.
    """

    def __init__(
        self, gpus: Mapping[str, Device], store: Store, site_mhz: Range | None, log: Callable[..., None], clock: Callable[[], float]
    ) -> None:
        self.gpus = gpus
        self.site_mhz = site_mhz
        self.trouble: dict[str, Trouble] = {}
        self._store = store
        self._log = log
        self.clock = clock
        self._requested_mhz: dict[str, int] = {}

    def changed(self) -> tuple[str, ...]:
        """GPUs with something to restore."""
        return self._store.uuids()

    def requested_mhz(self, uuid: str) -> int | None:
        """The clock that was last requested; None: none."""
        return self._requested_mhz.get(uuid)

    def saved(self, uuid: str) -> Saved:
        """What is restored when the lease ends."""
        return self._store.get(uuid)

    def raises_clock(self, uuid: str, max_mhz: int | None) -> bool:
        """Whether a clock request gives the GPU more than it has."""
        now_mhz = self._requested_mhz.get(uuid)
        return now_mhz is not None and (max_mhz is None or max_mhz > now_mhz)

    def raises_power(self, uuid: str, limit_mw: int | None) -> bool:
        """Whether a power request gives the GPU more than it has."""
        own_mw = self._store.get(uuid).own_limits_mw
        return bool(own_mw) and (limit_mw is None or limit_mw > own_mw[-1])

    def set_clock(self, uuid: str, max_mhz: int | None) -> None:
        """Let the GPU run at ``max_mhz`` at most and fall below when idle; None: as without a lease. Raises Refusal."""
        gpu = self.gpus[uuid]
        if max_mhz is None:
            if self._store.get(uuid).clocks:
                _try(lambda: self._restore_clocks(uuid, locked=True))
            return
        supported_mhz = _try(gpu.clocks_mhz)
        if max_mhz not in supported_mhz:
            nearest_mhz = min(supported_mhz, key=lambda mhz: abs(mhz - max_mhz))
            raise Refusal("denied", f"the GPU has no SM clock of {max_mhz} MHz; the nearest is {nearest_mhz} MHz")
        least_mhz = max(supported_mhz[-1], self.site_mhz.least if self.site_mhz else 0)
        self._keep(uuid, replace(self._store.get(uuid), clocks=True))
        _try(lambda: gpu.lock(least_mhz, max_mhz))
        self._requested_mhz[uuid] = max_mhz

    def set_power(self, uuid: str, limit_mw: int | None) -> None:
        """Set the power limit, never above what it was; None: what it was. Raises Refusal."""
        gpu, saved = self.gpus[uuid], self._store.get(uuid)
        if limit_mw is None:
            if saved.power_limit_mw is not None:
                _try(lambda: self._restore_power(uuid, saved))
                self._keep(uuid, replace(saved, power_limit_mw=None, own_limits_mw=()))
            return
        now_mw = _try(gpu.power_limit_mw)
        found_mw = now_mw if saved.power_limit_mw is None else saved.power_limit_mw
        if saved.power_limit_mw is not None and _foreign(now_mw, saved):
            found_mw = min(found_mw, now_mw)  # somebody lowered the limit during the lease: it is the new ceiling
        least_mw, _ = _try(gpu.power_bounds_mw)
        if not least_mw <= limit_mw <= found_mw:
            raise Refusal(
                "denied", f"the power limit can be {least_mw / 1000:g} to {found_mw / 1000:g} W: it is never raised above what it was"
            )
        self._keep(uuid, replace(saved, power_limit_mw=found_mw, own_limits_mw=(*saved.own_limits_mw[-1:], limit_mw)))
        _try(lambda: gpu.set_power_limit_mw(limit_mw))
        self._log("power", gpu=uuid, limit_w=limit_mw / 1000, found_w=found_mw / 1000)

    def restore(self, uuid: str, *, clocks_anyway: bool = False) -> bool:
        """Undo our changes of a GPU; what fails is tried again later (:meth:`retry`). True when all is undone.

        ``clocks_anyway``: also where we did not lock the clocks, since an operator wants it. A GPU whose clocks cannot be locked
        (split by MIG, or an old one) has no lock to be removed then.
        """
        problems: list[str] = []
        locked = self._store.get(uuid).clocks
        if clocks_anyway:
            self._collect(problems, lambda: self._store.put(uuid, replace(self._store.get(uuid), clocks=True)))
        saved = left = self._store.get(uuid)
        if saved.empty:
            self.trouble.pop(uuid, None)
            return not problems
        if uuid not in self.gpus:
            problems.append("this host has no such GPU any more, or it did not answer when clockd started")
        else:
            if saved.power_limit_mw is not None and self._collect(problems, lambda: self._restore_power(uuid, saved)):
                left = replace(left, power_limit_mw=None, own_limits_mw=())
            if saved.clocks and self._collect(problems, lambda: self._restore_clocks(uuid, locked)):
                left = replace(left, clocks=False)
            self._collect(problems, lambda: self._store.put(uuid, left))
        self._note(uuid, saved, "; ".join(problems))
        return not problems

    def retry(self) -> None:
        """Try again what is due."""
        now_s = self.clock()
        for uuid in [uuid for uuid, trouble in self.trouble.items() if trouble.due_s <= now_s]:
            self.restore(uuid)

    def next_retry_s(self) -> float:
        """When :meth:`retry` has something to do; infinity: never."""
        return min((trouble.due_s for trouble in self.trouble.values()), default=float("inf"))

    def _restore_clocks(self, uuid: str, locked: bool) -> None:
        """Lock the clocks as the site does, or not at all. ``locked``: whether they are known to be locked, so that they can be."""
        gpu = self.gpus[uuid]
        try:
            if self.site_mhz is None:
                gpu.unlock()
            else:
                gpu.lock(self.site_mhz.least, self.site_mhz.most)
        except NotSupported:
            if locked:
                raise
        self._requested_mhz.pop(uuid, None)

    def _restore_power(self, uuid: str, saved: Saved) -> None:
        """Put the saved limit back where the limit in force is ours. It is never raised above the saved one."""
        gpu, wanted_mw = self.gpus[uuid], saved.power_limit_mw
        now_mw = gpu.power_limit_mw()
        if wanted_mw is None or now_mw == wanted_mw:
            return
        if _foreign(now_mw, saved) or now_mw > wanted_mw:
            self._log("foreign-power-limit", gpu=uuid, limit_w=now_mw / 1000, saved_w=wanted_mw / 1000)
            return
        gpu.set_power_limit_mw(wanted_mw)
        now_mw = gpu.power_limit_mw()
        if abs(now_mw - wanted_mw) > POWER_TOLERANCE_MW:
            raise GpuError(f"the power limit is {now_mw / 1000:g} W after being restored to {wanted_mw / 1000:g} W")

    def _keep(self, uuid: str, saved: Saved) -> None:
        try:
            self._store.put(uuid, saved)
        except OSError as error:
            raise Refusal("failed", f"nothing is changed, since it cannot be saved what to restore: {error.strerror or error}") from error

    def _collect(self, problems: list[str], action: Callable[[], None]) -> bool:
        try:
            action()
        except (GpuError, NoDriver, OSError) as error:
            problems.append(str(error))
            return False
        return True

    def _note(self, uuid: str, saved: Saved, problem: str) -> None:
        """Remember and log how a restore went."""
        before = self.trouble.pop(uuid, None)
        if not problem:
            power_w = None if saved.power_limit_mw is None else saved.power_limit_mw / 1000
            self._log("restored", gpu=uuid, clocks=saved.clocks, power_limit_w=power_w, attempts=before.attempts + 1 if before else 1)
            return
        attempts = before.attempts + 1 if before else 1
        wait_s = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(attempts - 1, 16))
        self.trouble[uuid] = Trouble(attempts, self.clock() + wait_s, problem)
        if before is None or before.reason != problem:
            self._log("restore-failed", gpu=uuid, reason=problem)


def restore_for(controls: Controls, longest_s: float, sleep: Callable[[float], None] = time.sleep) -> dict[str, str]:
    """Restore everything, trying again for some time. Returns what could not be restored: UUID -> reason."""
    for uuid in controls.changed():
        if uuid not in controls.trouble:
            controls.restore(uuid)
    end_s = controls.clock() + longest_s
    while controls.trouble and controls.next_retry_s() < end_s:
        sleep(max(0.0, controls.next_retry_s() - controls.clock()))
        controls.retry()
    return {uuid: trouble.reason for uuid, trouble in controls.trouble.items()}


def _foreign(now_mw: int, saved: Saved) -> bool:
    """Whether the limit in force is neither the saved one nor one that we set."""
    known_mw = (saved.power_limit_mw, *saved.own_limits_mw)
    return bool(saved.own_limits_mw) and not any(mw is not None and abs(now_mw - mw) <= POWER_TOLERANCE_MW for mw in known_mw)


def _try(action: Callable[[], Any]) -> Any:
    try:
        return action()
    except (GpuError, NoDriver) as error:
        raise Refusal("failed", str(error)) from error
