"""Lending GPUs by the rules, and taking them back."""

from collections.abc import Callable, Iterable
from typing import Protocol

from megatron_energy.clockd.controls import Controls
from megatron_energy.clockd.grants import grants_for
from megatron_energy.clockd.leases import Caller, Grant, Lease, Leases
from megatron_energy.clockd.messages import Refusal
from megatron_energy.clockd.peers import Peer
from megatron_energy.clockd.rules import Rules
from megatron_energy.clockd.slurm import JobGpus
from megatron_energy.gpus.errors import GpuError, NoDriver


class Log(Protocol):
    """Where events go; :class:`megatron_energy.clockd.audit.Audit` is one."""

    failing: str

    def write(self, event: str, **facts: object) -> None:
        """Log an event."""

    def refused(self, **facts: object) -> None:
        """Log a refusal."""


class Lending:
    """The rules, the GPUs, and who holds which.

    Args:
        controls: the GPUs.
        rules: who may do what.
        job_gpus: the GPUs of a caller's Slurm job, by the rules in force.
        log: the audit log.
        split: whether MIG splits a GPU, or virtual machines share it.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        controls: Controls,
        rules: Rules,
        job_gpus: Callable[[Rules], JobGpus],
        log: Log,
        split: Callable[[str], bool],
        clock: Callable[[], float],
    ) -> None:
        self.controls = controls
        self.rules = rules
        self.log = log
        self.clock = clock
        self.leases = Leases()
        self._job_gpus, self._split = job_gpus, split

    def grant_of(self, peer: Peer) -> Callable[[str], Grant | None]:
        """A function UUID -> what the rules allow ``peer``; see :func:`grants_for`."""
        return grants_for(peer, self.rules, self._job_gpus(self.rules))

    def lend(self, caller: Caller, uuids: Iterable[str], ttl_s: float) -> Lease:
        """A new lease of all these GPUs. Raises Refusal: not all are allowed, or not all are free."""
        complaint = self.complaint(caller.peer)
        if complaint:
            raise Refusal("denied", complaint)
        grants = self._grants(caller.peer, uuids)
        for uuid in grants:
            self._require_free(caller, uuid)
        lease = self.leases.add(caller, grants, min(ttl_s, self.rules.longest_ttl_s), self.clock())
        self._log_lease("leased", lease, ttl_s=lease.ttl_s, rules=sorted({grant.rule for grant in grants.values()}))
        return lease

    def renew(self, caller: Caller, name: str) -> Lease:
        """Let a lease last longer, if the rules still grant it. Raises Refusal."""
        self._recheck(self.lease_of(caller, name))
        lease = self.lease_of(caller, name)  # refused with the reason where it has just ended
        lease.expires_s = self.clock() + lease.ttl_s
        return lease

    def lease_of(self, caller: Caller, name: str) -> Lease:
        """A lease of this connection. Raises Refusal, with the reason where it has ended."""
        lease = self.leases.of_caller(caller, name)
        if lease is None:
            why = caller.ended.get(name)
            raise Refusal("no-lease", f"the lease has ended: {why}" if why else "this connection has no such lease")
        return lease

    def end(self, lease: Lease, why: str) -> None:
        """End a lease and restore its GPUs."""
        self.leases.remove(lease)
        lease.caller.remember(lease.name, why)
        self._log_lease("lease-ended", lease, why=why, requests=lease.requests)
        for uuid in lease.grants:
            self.controls.restore(uuid)

    def end_of(self, caller: Caller, why: str) -> None:
        """End the leases of a connection."""
        for lease in self.leases.all_of(caller):
            self.end(lease, why)

    def end_all(self, why: str) -> None:
        """End every lease."""
        for lease in self.leases.all():
            self.end(lease, why)

    def tick(self) -> None:
        """End what has expired, and try again to restore what could not be restored."""
        for lease in self.leases.expired(self.clock()):
            self.end(lease, f"it was not renewed for {lease.ttl_s:g} s")
        self.controls.retry()

    def next_due_s(self) -> float:
        """When :meth:`tick` has something to do; infinity: never."""
        return min(self.leases.next_expiry_s(), self.controls.next_retry_s())

    def use(self, rules: Rules) -> None:
        """Go by other rules; leases that they do not grant in the same way end."""
        self.rules = rules
        self.controls.site_mhz = rules.site_clocks_mhz
        for lease in self.leases.all():
            self._recheck(lease)

    def complaint(self, peer: Peer) -> str:
        """Why everything is denied, or nothing. The particulars are for operators, since they may quote the file."""
        if self.rules.unusable is None:
            return ""
        return f"everything is denied: {self.rules.unusable}" if peer.operator else "everything is denied: clockd cannot use its rules file"

    def unrestored(self, uuids: Iterable[str]) -> dict[str, str]:
        """Of these GPUs those that could not be restored yet, with the reason."""
        return {uuid: trouble.reason for uuid in uuids if (trouble := self.controls.trouble.get(uuid)) is not None}

    def _grants(self, peer: Peer, uuids: Iterable[str]) -> dict[str, Grant]:
        """Grants for all of the GPUs. A GPU that is not there is denied in the same words as one that is not allowed."""
        grant_of = self.grant_of(peer)
        grants: dict[str, Grant] = {}
        for uuid in uuids:
            grant = grant_of(uuid)
            if grant is None or uuid not in self.controls.gpus:
                raise Refusal("denied", f"no rule lets user {peer.uid} use {uuid}: ask your operator (clockd's rules deny by default)")
            grants[uuid] = grant
        return grants

    def _recheck(self, lease: Lease) -> None:
        """End a lease that would not be granted any more."""
        why = "" if self.rules.unusable is None else "clockd cannot use its rules file"
        try:
            if not why and self._grants(lease.caller.peer, lease.grants) != lease.grants:
                why = "the rules have changed"
        except Refusal as refusal:
            why = str(refusal)
        if why:
            self.end(lease, why)

    def _require_free(self, caller: Caller, uuid: str) -> None:
        trouble, holder = self.controls.trouble.get(uuid), self.leases.of_gpu(uuid)
        if trouble is not None:
            raise Refusal("busy", f"{uuid} could not be restored yet: {trouble.reason}")
        if holder is not None:
            peer = holder.caller.peer
            known = peer.uid == caller.peer.uid or caller.peer.operator
            raise Refusal("busy", f"{uuid} is leased by " + (f"process {peer.pid} of user {peer.uid}" if known else "another user"))
        try:
            split = self._split(uuid)
        except (GpuError, NoDriver) as error:
            raise Refusal("failed", str(error)) from error
        if split:
            raise Refusal("denied", f"{uuid} is split by MIG, or shared by virtual machines: its clocks are others' too and are left alone")

    def _log_lease(self, event: str, lease: Lease, **facts: object) -> None:
        peer = lease.caller.peer
        self.log.write(event, lease=lease.name, pid=peer.pid, uid=peer.uid, gpus=list(lease.grants), **facts)
