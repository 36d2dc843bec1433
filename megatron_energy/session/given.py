"""What the user gave instead of what a run would find out, a plan or a profile: refused before training where it cannot hold here."""

from collections.abc import Sequence
from dataclasses import dataclass

from megatron_energy.errors import UserError
from megatron_energy.planning.plan import Plan
from megatron_energy.profiles.profile import Profile
from megatron_energy.session.options import EnergyOptions

LEARNED = "learned in a live run"
"""``source`` in the provenance of profiles that runs have learned; only these tell what they hold for in words of ours."""

PLANLESS = ("measure", "maximum")
"""Policies that leave the clocks as they are."""


@dataclass(frozen=True)
class Here:
    """The run.

    Attributes:
        gpu_name: of all its GPUs.
        clocks_mhz: that they support.
        lead_s: how early raises have to be requested.
        made_for: model and sizes that the times of operations depend on.
    """

    gpu_name: str
    clocks_mhz: Sequence[int]
    lead_s: float
    made_for: str


def check_options(options: EnergyOptions, plan: Plan) -> None:
    """Refuse options that contradict a given plan: they would change nothing.

    Raises:
        UserError: names the first of them.
    """
    if options.policy in PLANLESS:
        raise UserError(f"--energy-policy {options.policy} leaves the clocks as they are: leave out --energy-plan or this policy")
    given = set(options.given)
    if "policy" in given and options.policy not in ("dry-run", plan.policy):
        raise UserError(f"--energy-policy {options.policy}, but the plan was made with {plan.policy}: leave the policy out, or the plan")
    for name, flag in (("max_switches", "--energy-max-switches"), ("slowdown", "--energy-slowdown")):
        wanted, planned = getattr(options, name), getattr(plan, name)
        if name in given and wanted != planned:
            raise UserError(f"{flag} {wanted}, but the plan was made with {planned}: leave the flag out, or make a plan with it")


def check_requests(plan: Plan, here: Here) -> None:
    """Whether the plan's clocks can be brought about here, where it says, and in time.

    Raises:
        UserError: they cannot.
    """
    unsupported = sorted(plan.clocks_mhz - set(here.clocks_mhz))
    if unsupported:
        raise UserError(f"the plan uses {unsupported[0]} MHz, which {here.gpu_name} does not support: make a plan for this GPU")
    for unit in plan.units:
        if unit.switches and not unit.requests:
            raise UserError(f"the plan's segments for stage {unit.stage} come without requests: make it with `megatron-energy plan`")
    made_for = plan.provenance.get("gpu")
    if made_for is not None and made_for != here.gpu_name:
        raise UserError(f"the plan was made for {made_for}, this run has {here.gpu_name}: make a plan for this GPU")
    if plan.switches_max and plan.lead_s < here.lead_s - 1e-6:
        raise UserError(
            f"the plan requests raises {plan.lead_s:.3f} s early, but this node needs {here.lead_s:.3f} s: "
            f"make it with --lead {here.lead_s:.3f}"
        )


def check_origin(profile: Profile, here: Here) -> None:
    """Refuse a profile that a run of another model, other sizes or other GPUs has learned. Other files tell nothing that could be compared.

    Raises:
        UserError: says what differs.
    """
    origin = profile.provenance
    if origin.get("source") != LEARNED:
        return
    for name, found in (("gpu", here.gpu_name), ("made_for", here.made_for)):
        told = origin.get(name)
        if told is not None and told != found:
            raise UserError(f"the profile was learned on {told}, this run is {found}: leave it out, and the run learns its own")
