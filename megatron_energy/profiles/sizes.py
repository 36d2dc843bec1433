"""Whether a profile was measured on a pipeline of the same size: curves of other stages or chunks would be used or left out silently."""

from megatron_energy.errors import UserError
from megatron_energy.profiles.profile import Profile


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
