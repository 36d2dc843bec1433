"""What the rules allow a caller on a GPU."""

from collections.abc import Callable

from megatron_energy.clockd.leases import Grant
from megatron_energy.clockd.messages import Refusal
from megatron_energy.clockd.peers import Peer
from megatron_energy.clockd.rules import Range, Rules
from megatron_energy.clockd.slurm import JobGpus
from megatron_energy.errors import UserError


def grants_for(peer: Peer, rules: Rules, job_gpus: JobGpus) -> Callable[[str], Grant | None]:
    """A function UUID -> what the first fitting rule allows ``peer`` there; None: nothing.

    The Slurm job is looked up at most once. Raises Refusal from that function where the job's GPUs cannot be told.
    """
    fitting = [rule for rule in rules.rules if rule.fits(peer.uid, peer.gids)]
    known: list[frozenset[str]] = []

    def of_job(uuid: str) -> bool:
        if not known:
            try:
                known.append(job_gpus(peer))
            except UserError as error:
                raise Refusal("denied", f"the GPUs of your Slurm job cannot be told: {error}") from error
        return uuid in known[0]

    def grant(uuid: str) -> Grant | None:
        for rule in fitting:
            if rule.gpus == "all" or (of_job(uuid) if rule.gpus == "slurm-job" else uuid in rule.gpus):
                return Grant(rule.name, common(rule.clocks_mhz, rules.site_clocks_mhz), rule.power_mw)
        return None

    return grant


def common(allowed: Range | None, site: Range | None) -> Range | None:
    """The part of ``allowed`` within the site's range; None when there is none."""
    if allowed is None or site is None:
        return allowed
    least, most = max(allowed.least, site.least), min(allowed.most, site.most)
    return Range(least, most) if least <= most else None
