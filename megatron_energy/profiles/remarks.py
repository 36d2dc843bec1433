"""What a profile's user should know before a plan is made from it; nothing of it is a reason to refuse the profile."""

from megatron_energy.profiles.profile import Profile

CLOCKED = ("forward", "backward", "grad-sync", "optimizer")
MOST_GPU_POWER_W = 3000.0  # no GPU of today draws half of it
NAMED = 2  # operations, before "and N more"

_Grids = dict[tuple[int, int, str], set[int]]


def remarks(profile: Profile, blocking_power_w: float) -> list[str]:
    """All remarks, one line each; none for a sound profile."""
    return [line for line in (uneven_clocks(profile), measured_at_one_clock(profile), doubtful_units(profile, blocking_power_w)) if line]


def uneven_clocks(profile: Profile) -> str:
    """Says which clocks cannot be planned with, because some operations were not measured there; "" where all were, or none is common."""
    grids: _Grids = {
        key: {int(mhz) for mhz in curve.clock_mhz}
        for key, curve in profile.curves.items()
        if key[2] in CLOCKED and len(curve.clock_mhz) > 1  # one of a single point holds at every clock
    }
    every = set().union(*grids.values())
    common = every.intersection(*grids.values())
    if not common or common == every:
        return ""
    left_out = "; ".join(f"{mhz} MHz ({_lacking(grids, mhz)})" for mhz in sorted(every - common, reverse=True))
    return (
        f"left out, as not every operation was measured there: {left_out}; "
        f"the baseline is at {max(common)} MHz, and the bound is over the rest"
    )


def _lacking(grids: _Grids, clock_mhz: int) -> str:
    names = [f"{instruction} of stage {stage}" for (stage, _, instruction), grid in sorted(grids.items()) if clock_mhz not in grid]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"no {', '.join(names[:NAMED])}{more}"


def measured_at_one_clock(profile: Profile) -> str:
    """Says which forwards and backwards have a single clock where others have further ones: at those they would take longer."""
    clocks_mhz = {key: [int(mhz) for mhz in curve.clock_mhz] for key, curve in profile.curves.items() if key[2] in ("forward", "backward")}
    every_mhz = {mhz for clocks in clocks_mhz.values() for mhz in clocks}
    lower = [
        f"{instruction} of stage {stage} ({clocks[0]} MHz)"
        for (stage, _, instruction), clocks in sorted(clocks_mhz.items())
        if len(clocks) == 1 and len(every_mhz) > 1
    ]
    return f"measured at one clock, and taken as the same at every other: {', '.join(lower)}" if lower else ""


def doubtful_units(profile: Profile, blocking_power_w: float) -> str:
    """Says so where the power of forwards and backwards is none that a GPU has: a sign of ms or mJ instead of s and J."""
    most_w = max(
        (
            float(joules / seconds)
            for (_, _, instruction), curve in profile.curves.items()
            if instruction in ("forward", "backward")
            for joules, seconds in zip(curve.energy_j, curve.time_s, strict=True)
            if seconds > 0
        ),
        default=0.0,
    )
    if 0 < most_w < blocking_power_w:
        return f"no operation draws more than {most_w:.3g} W, a waiting GPU {blocking_power_w:.3g} W: are times in s and energies in J?"
    if most_w > MOST_GPU_POWER_W:
        return f"an operation draws {most_w:,.6g} W on one GPU: are times in s and energies in J?"
    return ""
