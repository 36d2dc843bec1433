"""Whether a profile was measured on a pipeline of the same size: curves of other stages or chunks would be used or left out silently."""

from megatron_energy.errors import UserError
from megatron_energy.profiles.profile import Profile


def uneven_maximum(profile: Profile) -> str:
    """Says which operations lack the profile's highest clock, since the baseline then is no run at one clock; "" where none does."""
    tops_mhz = {key: int(curve.clock_mhz[0]) for key, curve in profile.curves.items() if key[2] in ("forward", "backward")}
    top_mhz = max(tops_mhz.values(), default=0)
    lower = [f"{instruction} of stage {stage} ({mhz})" for (stage, _, instruction), mhz in sorted(tops_mhz.items()) if mhz < top_mhz]
    if not lower:
        return ""
    return f"not every operation was measured at {top_mhz} MHz: the baseline takes {', '.join(lower)} MHz instead"


def check_sizes(profile: Profile, stages: int, chunks: int) -> None:
    """Refuse the profile of a larger pipeline. What a smaller one lacks, :func:`~megatron_energy.profiles.tables.curve_of` names.

    Args:
        profile: rows of whole stages hold for any number of chunks.
        stages: of the pipeline to plan.
        chunks: model chunks per stage, likewise.

    Raises:
        UserError: the profile has more stages, or more chunks per stage.
    """
    for has, wants, what in (
        (1 + max(stage for stage, _, _ in profile.curves), stages, "stages"),
        (1 + max(chunk for _, chunk, _ in profile.curves), chunks, "chunks per stage"),
    ):
        if has > wants:
            raise UserError(f"the profile has {has} {what}, this pipeline {wants}: take a profile of a pipeline of the same size")
