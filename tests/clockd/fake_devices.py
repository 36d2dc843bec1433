"""GPUs in memory, for tests of what decides and restores."""

from collections.abc import Callable

from megatron_energy.clockd.controls import Controls
from megatron_energy.clockd.leases import Caller
from megatron_energy.clockd.lending import Lending
from megatron_energy.clockd.peers import Peer
from megatron_energy.clockd.rules import Range, Rule, Rules
from megatron_energy.clockd.saved import Memory
from megatron_energy.clockd.service import Service
from megatron_energy.gpus.errors import GpuError
from tests.emulated_gpus import FakeClock

UUIDS = ("GPU-a", "GPU-b")


class FakeDevice:
    """A GPU with clocks of 210 to 1410 MHz in steps of 300 and limits of 100 to 400 W. ``failing``: every change fails."""

    def __init__(self, limit_mw: int = 400_000) -> None:
        self.locked_mhz: tuple[int, int] | None = None
        self.limit_mw = limit_mw
        self.failing = False
        self.changes = 0

    def clocks_mhz(self) -> tuple[int, ...]:
        return (1410, 1110, 810, 510, 210)

    def lock(self, least_mhz: int, most_mhz: int) -> None:
        self._change()
        self.locked_mhz = (least_mhz, most_mhz)

    def unlock(self) -> None:
        self._change()
        self.locked_mhz = None

    def power_limit_mw(self) -> int:
        return self.limit_mw

    def power_bounds_mw(self) -> tuple[int, int]:
        return 100_000, 400_000

    def set_power_limit_mw(self, limit_mw: int) -> None:
        self._change()
        self.limit_mw = limit_mw

    def _change(self) -> None:
        if self.failing:
            raise GpuError("the driver says no")
        self.changes += 1


class Events:
    """An audit log in memory."""

    failing = ""

    def __init__(self) -> None:
        self.all: list[tuple[str, dict[str, object]]] = []

    def write(self, event: str, **facts: object) -> None:
        self.all.append((event, facts))

    def refused(self, **facts: object) -> None:
        self.write("refused", **facts)

    def names(self) -> list[str]:
        return [name for name, _ in self.all]


def rule(name: str = "r", uids: frozenset[int] | None = None, **changes: object) -> Rule:
    values: dict[str, object] = {"gpus": "all", "clocks_mhz": Range(510, 1410), "power_mw": Range(200_000, 400_000), **changes}
    return Rule(name=name, uids=uids, gids=frozenset(), **values)  # type: ignore[arg-type]


class Desk:
    """A clockd without processes: devices, a clock that the test moves, and the service."""

    def __init__(self, *rules: Rule, site_mhz: Range | None = None, job_gpus: Callable[[Peer], frozenset[str]] | None = None) -> None:
        self.clock = FakeClock()
        self.devices = {uuid: FakeDevice() for uuid in UUIDS}
        self.events = Events()
        self.store = Memory()
        self.controls = Controls(self.devices, self.store, site_mhz, self.events.write, self.clock)
        self.rules = Rules(rules=rules or (rule(),), site_clocks_mhz=site_mhz)
        self.split: set[str] = set()
        answer = job_gpus or (lambda _peer: frozenset())
        self.lending = Lending(self.controls, self.rules, lambda _rules: answer, self.events, lambda uuid: uuid in self.split, self.clock)
        self.service = Service(self.lending, emulated=True)


def caller(uid: int = 1003, pid: int = 42) -> Caller:
    return Caller(Peer(pid, uid, frozenset({uid})))
