"""Small planning problems for tests, with tables made of a plain GPU model or given outright."""

import numpy as np

from megatron_energy.pipeline.build import build_graph
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.planning.problem import Problem
from megatron_energy.profiles.profile import Curve, Profile
from megatron_energy.profiles.tables import Tables, build_tables
from tests.planning.pipelines import gpu_tables

CLOCKS_MHZ = (1400, 1200, 1000, 800)


def curve(work_s, clocks_mhz=CLOCKS_MHZ, *, bound=0.1, dynamic_w=300.0, static_w=80.0):
    """A share ``bound`` of the time does not depend on the clock; dynamic power falls with the cube of the clock."""
    clocks = np.array(clocks_mhz, dtype=np.int64)
    slower = clocks[0] / clocks
    time_s = work_s * (bound + (1 - bound) * slower)
    return Curve(clocks, time_s, time_s * (static_w + dynamic_w / slower**3))


def profile_of(forward_s, clocks_mhz=CLOCKS_MHZ, **model):
    """Stages whose forwards take ``forward_s`` (one each) at the highest clock; backwards take twice as long."""
    curves = {}
    for stage, work_s in enumerate(forward_s):
        curves[stage, -1, "forward"] = curve(work_s, clocks_mhz, **model)
        curves[stage, -1, "backward"] = curve(2 * work_s, clocks_mhz, **model)
    return Profile(curves, 80.0)


def random_profile(rng, stages, clocks, *, tidy=True):
    """A profile with random stages; untidy ones are neither smooth nor monotone."""
    mhz = tuple(int(f) for f in 1410 - 15 * np.sort(rng.choice(40, clocks, replace=False)))
    profile = profile_of(rng.uniform(0.5, 1.5, stages), mhz, bound=rng.uniform(0, 0.5), dynamic_w=rng.uniform(50, 400))
    if tidy:
        return profile
    return Profile(
        {
            k: Curve(c.clock_mhz, c.time_s * rng.uniform(0.7, 1.4, clocks), c.energy_j * rng.uniform(0.5, 2, clocks))
            for k, c in profile.curves.items()
        },
        80.0,
    )


def problem_of(profile, microbatches, *, chunks=1, p2p="ideal", stages=None, **settings):
    count = stages or 1 + max(stage for stage, _, _ in profile.curves)
    graph = build_graph(Schedule(count, microbatches, chunks, p2p=p2p))
    return Problem(graph, build_tables(graph, profile, chunks), profile.blocking_power_w, **settings)


def with_tables(problem, time_s, energy_j, **settings):
    """The same graph with other (n, F) tables, or one row for all vertices."""
    shape = (len(problem.graph.vertices), np.shape(time_s)[-1])
    clock_mhz = np.array([1400 - 15 * i for i in range(shape[1])], dtype=np.int64)
    tables = Tables(
        clock_mhz, np.broadcast_to(np.array(time_s, float), shape).copy(), np.broadcast_to(np.array(energy_j, float), shape).copy()
    )
    return Problem(problem.graph, tables, **{"blocking_power_w": problem.blocking_power_w, **settings})


def real_problem(p2p="overlap", **settings):
    """Four stages, two chunks, eight microbatches with Megatron's own transfers, gradient sync and optimizer as fixed steps."""
    graph = build_graph(Schedule(4, 8, 2, p2p=p2p), transfer_s=0.01, grad_sync=True, optimizer=True)
    tables = gpu_tables(graph, clocks=tuple(range(1400, 899, -25)))
    for v, vertex in enumerate(graph.vertices):
        if vertex.kind in ("grad-sync", "optimizer"):
            tables.time_s[v], tables.energy_j[v] = 0.5, 60.0
    return Problem(graph, tables, 80.0, **settings)
