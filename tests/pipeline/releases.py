"""What is known of megatron-core's releases, so that tests can say what a run has to record. The product asks the run instead."""

from megatron_energy.pipeline.schedule import P2pMode

WAITS_AT_ONCE_FROM = (0, 18)
"""The first release that waits for an overlapped send at once, if its outputs are deallocated."""


def mode_in(core_version: str, *, overlap: bool, deallocate: bool) -> P2pMode:
    """The communication mode of a release, 0.10 or later, under these flags. Read in the sources of the releases."""
    if not overlap:
        return "batched"
    major, minor = core_version.split(".")[:2]
    return "overlap-wait" if deallocate and (int(major), int(minor)) >= WAITS_AT_ONCE_FROM else "overlap"
