"""What is said about a GPU."""

from typing import Any

from megatron_energy.clockd.controls import Controls
from megatron_energy.clockd.leases import Caller, Grant, Lease


def gpu_status(uuid: str, caller: Caller, grant: Grant | None, lease: Lease | None, controls: Controls, now_s: float) -> dict[str, Any]:
    """One GPU for ``status``, as plain types.

    Who holds a lease, and what he asked for, is shown to himself, to other processes of his user, and to operators; to
    others only that it is leased.
    """
    status: dict[str, Any] = {"uuid": uuid, "rule": grant.rule if grant is not None else None, "leased": lease is not None}
    trouble = controls.trouble.get(uuid)
    if trouble is not None:
        status["unrestored"] = {
            "reason": trouble.reason,
            "attempts": trouble.attempts,
            "next_attempt_in_s": round(max(0.0, trouble.due_s - now_s), 3),
        }
    if lease is None:
        return status
    peer = lease.caller.peer
    if peer.uid == caller.peer.uid or caller.peer.operator:
        saved_mw = controls.saved(uuid).power_limit_mw
        own_mw = controls.saved(uuid).own_limits_mw
        status["lease"] = {
            "pid": peer.pid,
            "uid": peer.uid,
            "expires_in_s": round(max(0.0, lease.expires_s - now_s), 3),
            "clock_requests": lease.requests,
            "max_mhz": controls.requested_mhz(uuid),
            "power_limit_w": own_mw[-1] / 1000 if own_mw else None,
            "saved_power_limit_w": None if saved_mw is None else saved_mw / 1000,
        }
    return status
