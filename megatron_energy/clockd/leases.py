"""Who holds which GPU, and until when."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from megatron_energy.clockd.peers import Peer
from megatron_energy.clockd.rates import Allowance
from megatron_energy.clockd.rules import Range

MESSAGES_PER_S = 200
MESSAGES_BURST = 400
_REMEMBERED_LEASES = 32


@dataclass(slots=True)
class Caller:
    """One connection: its process, how much it may say, and why leases it had have ended (lease -> reason)."""

    peer: Peer
    messages: Allowance = field(default_factory=lambda: Allowance(MESSAGES_PER_S, MESSAGES_BURST))
    ended: dict[str, str] = field(default_factory=dict)

    def remember(self, lease: str, why: str) -> None:
        """Keep why a lease has ended, so that its next use can be answered with it."""
        self.ended[lease] = why
        while len(self.ended) > _REMEMBERED_LEASES:
            del self.ended[next(iter(self.ended))]


@dataclass(frozen=True, slots=True)
class Grant:
    """What a rule allows on one GPU; None: not at all."""

    rule: str
    clocks_mhz: Range | None
    power_mw: Range | None


@dataclass(slots=True)
class Lease:
    """GPUs lent to one connection.

    Attributes:
        name: 16 hexadecimal digits; no secret, since it works only on the connection it was given to.
        caller: the connection.
        grants: UUID -> what is allowed.
        ttl_s: how long it lasts without being renewed.
        expires_s: when it ends, on clockd's clock.
        requests: clock requests carried out.
    """

    name: str
    caller: Caller
    grants: Mapping[str, Grant]
    ttl_s: float
    expires_s: float
    requests: int = 0


class Leases:
    """All leases; a GPU has one at most."""

    def __init__(self) -> None:
        self._by_name: dict[str, Lease] = {}
        self._by_gpu: dict[str, Lease] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def all(self) -> list[Lease]:
        """Every lease, oldest first."""
        return list(self._by_name.values())

    def of_gpu(self, uuid: str) -> Lease | None:
        """The lease of a GPU."""
        return self._by_gpu.get(uuid)

    def of_caller(self, caller: Caller, name: str) -> Lease | None:
        """A lease by its name, for the connection it was given to alone."""
        lease = self._by_name.get(name)
        return lease if lease is not None and lease.caller is caller else None

    def all_of(self, caller: Caller) -> list[Lease]:
        """The leases of a connection."""
        return [lease for lease in self._by_name.values() if lease.caller is caller]

    def expired(self, now_s: float) -> list[Lease]:
        """Leases whose time is over."""
        return [lease for lease in self._by_name.values() if lease.expires_s <= now_s]

    def next_expiry_s(self) -> float:
        """When the next lease expires; infinity: never."""
        return min((lease.expires_s for lease in self._by_name.values()), default=float("inf"))

    def add(self, caller: Caller, grants: Mapping[str, Grant], ttl_s: float, now_s: float) -> Lease:
        """A new lease. The GPUs must be free."""
        assert all(uuid not in self._by_gpu for uuid in grants)
        lease = Lease(secrets.token_hex(8), caller, grants, ttl_s, now_s + ttl_s)
        self._by_name[lease.name] = lease
        self._by_gpu.update(dict.fromkeys(grants, lease))
        return lease

    def remove(self, lease: Lease) -> None:
        """Forget a lease."""
        del self._by_name[lease.name]
        for uuid in lease.grants:
            del self._by_gpu[uuid]
