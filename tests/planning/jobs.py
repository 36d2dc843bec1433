"""Small jobs whose GPUs differ, for tests."""

from megatron_energy.parallel.layout import Layout
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.planning.assemble import Purpose
from megatron_energy.planning.job_setup import job_problem
from megatron_energy.profiles.ranks import RankProfiles

BLOCKING_W = 80.0


def purpose_of(schedule, layout, policy="segments", max_switches=8, lead_s=0.0):
    sizes = {name: getattr(layout, name) for name in ("tensor", "context", "expert", "data", "pipeline")}
    return Purpose(sizes, schedule, policy, max_switches, lead_s)


def job_of(profile, microbatches=4, *, slower=None, chunks=1, p2p="ideal", most_classes=8, settings=None, **sizes):
    """(schedule, layout, problem); ``slower``: by rank, how many times as long it takes."""
    layout = Layout(**sizes)
    schedule = Schedule(layout.pipeline, microbatches, chunks, p2p=p2p)
    ranks = RankProfiles.alike(profile, layout.world_size, slower)
    return schedule, layout, job_problem(schedule, layout, ranks, BLOCKING_W, most_classes=most_classes, **(settings or {}))
