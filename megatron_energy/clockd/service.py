"""What clockd answers to a request; knows neither sockets nor NVML."""

from collections.abc import Callable
from typing import Any

from megatron_energy import __version__
from megatron_energy.clockd.leases import Caller, Grant, Lease
from megatron_energy.clockd.lending import Lending
from megatron_energy.clockd.messages import PROTOCOL, Operation, Refusal, Request
from megatron_energy.clockd.rates import Allowance
from megatron_energy.clockd.rules import Range
from megatron_energy.clockd.status import gpu_status

Handler = Callable[[Caller, Request], dict[str, Any]]


class Service:
    """Answers requests. ``emulated``: whether the GPUs are."""

    def __init__(self, lending: Lending, emulated: bool = False) -> None:
        self._lending, self._controls, self._emulated = lending, lending.controls, emulated
        self._lowers: dict[str, Allowance] = {}
        self._handlers: dict[Operation, Handler] = {
            "hello": self._hello,
            "status": self._status,
            "lease": self._lease,
            "clock": self._clock,
            "power": self._power,
            "renew": self._renew,
            "release": self._release,
            "evict": self._evict,
            "restore": self._restore,
        }

    def answer(self, caller: Caller, request: Request) -> dict[str, Any]:
        """The reply to a request, without its id."""
        try:
            if not self.urgent(caller, request) and not caller.messages.take(self._lending.clock()):
                raise Refusal("rate", f"too many requests: send fewer than {caller.messages.per_s:g} per second")
            return {"ok": True, **self._handlers[request.op](caller, request)}
        except Refusal as refusal:
            peer = caller.peer
            self._lending.log.refused(op=request.op, pid=peer.pid, uid=peer.uid, error=refusal.kind, message=str(refusal))
            return {"ok": False, "error": refusal.kind, "message": str(refusal)}

    def urgent(self, caller: Caller, request: Request) -> bool:
        """Whether a request gives something back. Such requests come first and are never held back."""
        if request.op == "restore":
            return caller.peer.operator
        if request.op == "evict":
            return bool(self._within_reach(caller, request))
        lease = self._lending.leases.of_caller(caller, request.lease)
        if lease is None or request.op == "release":
            return lease is not None
        if request.gpu not in lease.grants:
            return False
        if request.op == "clock":
            return self._controls.raises_clock(request.gpu, request.max_mhz)
        return request.op == "power" and self._controls.raises_power(request.gpu, request.limit_mw)

    def _hello(self, caller: Caller, _request: Request) -> dict[str, Any]:
        peer = caller.peer
        return {
            "clockd": __version__,
            "protocol": PROTOCOL,
            "emulated": self._emulated,
            "pid": peer.pid,
            "uid": peer.uid,
            "operator": peer.operator,
            "rules": self._lending.complaint(peer),
        }

    def _status(self, caller: Caller, _request: Request) -> dict[str, Any]:
        lending, peer = self._lending, caller.peer
        grant_of = lending.grant_of(peer)
        gpus = []
        for uuid in self._controls.gpus:
            grant = grant_of(uuid)
            if grant is not None or peer.operator:
                gpus.append(gpu_status(uuid, caller, grant, lending.leases.of_gpu(uuid), self._controls, lending.clock()))
        return {"emulated": self._emulated, "rules": lending.complaint(peer), "audit": lending.log.failing, "gpus": gpus}

    def _lease(self, caller: Caller, request: Request) -> dict[str, Any]:
        if request.gpus is None:
            raise Refusal("malformed", "a lease names its GPUs")
        lease = self._lending.lend(caller, request.gpus, request.ttl_s)
        return {"lease": lease.name, "ttl_s": lease.ttl_s, "gpus": {uuid: _allowed(grant) for uuid, grant in lease.grants.items()}}

    def _clock(self, caller: Caller, request: Request) -> dict[str, Any]:
        lease, grant = self._held(caller, request)
        if request.max_mhz is not None:
            _require(grant.clocks_mhz, request.max_mhz, 1, "clock", "MHz")
        self._take_turn(request.gpu, self._controls.raises_clock(request.gpu, request.max_mhz))
        self._controls.set_clock(request.gpu, request.max_mhz)
        lease.requests += 1
        return {}

    def _power(self, caller: Caller, request: Request) -> dict[str, Any]:
        _, grant = self._held(caller, request)
        if request.limit_mw is not None:
            _require(grant.power_mw, request.limit_mw, 1000, "power limit", "W")
        self._take_turn(request.gpu, self._controls.raises_power(request.gpu, request.limit_mw))
        self._controls.set_power(request.gpu, request.limit_mw)
        return {}

    def _renew(self, caller: Caller, request: Request) -> dict[str, Any]:
        return {"ttl_s": self._lending.renew(caller, request.lease).ttl_s}

    def _release(self, caller: Caller, request: Request) -> dict[str, Any]:
        lease = self._lending.lease_of(caller, request.lease)
        self._lending.end(lease, "it was released")
        return {"unrestored": self._lending.unrestored(lease.grants)}

    def _evict(self, caller: Caller, request: Request) -> dict[str, Any]:
        peer, leases = caller.peer, self._within_reach(caller, request)
        if request.gpus is not None and not leases:
            raise Refusal("no-lease", "your user holds none of these GPUs")
        for lease in leases:
            self._lending.end(lease, f"user {peer.uid} released it from outside")
        ended = [uuid for lease in leases for uuid in lease.grants]
        return {"released": ended, "unrestored": self._lending.unrestored(ended)}

    def _restore(self, caller: Caller, request: Request) -> dict[str, Any]:
        if not caller.peer.operator:
            raise Refusal("denied", "restoring GPUs is for operators (root); end your own leases with: megatron-energy clockd release")
        if request.gpus is not None and any(uuid not in self._controls.gpus for uuid in request.gpus):
            raise Refusal("denied", "this host does not have all of these GPUs")
        self._lending.log.write("restore", pid=caller.peer.pid, uid=caller.peer.uid, gpus=request.gpus)
        gpus = dict.fromkeys(request.gpus if request.gpus is not None else (*self._controls.changed(), *self._controls.trouble))
        for lease in self._named(request):
            self._lending.end(lease, "an operator restored the GPU")
        for uuid in gpus:
            self._controls.restore(uuid, clocks_anyway=request.gpus is not None)
        unrestored = self._lending.unrestored(gpus)
        return {"restored": [uuid for uuid in gpus if uuid not in unrestored], "unrestored": unrestored}

    def _named(self, request: Request) -> list[Lease]:
        """The leases of the GPUs that a request names, or all."""
        return [lease for lease in self._lending.leases.all() if request.gpus is None or not set(request.gpus).isdisjoint(lease.grants)]

    def _within_reach(self, caller: Caller, request: Request) -> list[Lease]:
        """Of these leases those that the caller may end: his user's, or all."""
        peer = caller.peer
        return [lease for lease in self._named(request) if peer.operator or lease.caller.peer.uid == peer.uid]

    def _held(self, caller: Caller, request: Request) -> tuple[Lease, Grant]:
        lease = self._lending.lease_of(caller, request.lease)
        grant = lease.grants.get(request.gpu)
        if grant is None:
            raise Refusal("denied", f"the lease does not cover {request.gpu}")
        return lease, grant

    def _take_turn(self, uuid: str, raises: bool) -> None:
        """Hold back lowers that come too fast: each takes some milliseconds of driver time from all GPUs of the node."""
        per_s = self._lending.rules.lowers_per_s
        allowance = self._lowers.setdefault(uuid, Allowance(per_s, 2 * per_s))
        if not raises and not allowance.take(self._lending.clock()):
            raise Refusal("rate", f"more than {allowance.per_s:g} lowered clocks per second: lower less often")


def _require(allowed: Range | None, value: int, unit: int, what: str, unit_name: str) -> None:
    if allowed is None:
        raise Refusal("denied", f"the rules give you no control of the {what}")
    if value not in allowed:
        raise Refusal("denied", f"the rules allow a {what} of {allowed.least / unit:g} to {allowed.most / unit:g} {unit_name}")


def _allowed(grant: Grant) -> dict[str, Any]:
    clocks, power = grant.clocks_mhz, grant.power_mw
    return {
        "clocks_mhz": None if clocks is None else [clocks.least, clocks.most],
        "power_w": None if power is None else [power.least / 1000, power.most / 1000],
    }
