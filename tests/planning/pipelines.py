"""Small pipelines for the planner's tests, written without megatron_energy.pipeline: data dependencies only."""

import numpy as np

from megatron_energy.pipeline.graph import Graph, Unit, Vertex
from megatron_energy.planning.problem import Problem
from megatron_energy.profiles.tables import Tables


def stage_order(stages, chunks, microbatches, stage):
    """(kind, chunk, microbatch) of one stage in interleaved (or plain) 1F1B, group size = stages."""
    table = [
        (microbatch, chunk)
        for first in range(0, microbatches, stages)
        for chunk in range(chunks)
        for microbatch in range(first, min(microbatches, first + stages))
    ]
    forward = [("forward", chunk, microbatch) for microbatch, chunk in table]
    backward = [("backward", chunks - 1 - chunk, microbatch) for microbatch, chunk in table]
    warmup = stages - 1 - stage if chunks == 1 else 2 * (stages - 1 - stage) + (chunks - 1) * stages
    warmup = min(warmup, len(table))
    order = forward[:warmup]
    for k in range(len(table) - warmup):
        order += [forward[warmup + k], backward[k]]
    return order + backward[len(table) - warmup :]


def ideal_graph(stages, chunks, microbatches):
    index, vertices, chains = {}, [], []
    for stage in range(stages):
        order = stage_order(stages, chunks, microbatches, stage)
        chains.append(np.arange(len(vertices), len(vertices) + len(order)))
        for operation in order:
            index[(stage, *operation)] = len(vertices)
            vertices.append(Vertex(stage, *operation))
    edges = {(a, b) for chain in chains for a, b in zip(chain.tolist(), chain.tolist()[1:], strict=False)}
    last = stages * chunks - 1
    for (stage, kind, chunk, microbatch), i in index.items():
        virtual = chunk * stages + stage
        if kind == "forward" and virtual > 0:
            edges.add((index[((virtual - 1) % stages, "forward", (virtual - 1) // stages, microbatch)], i))
        if kind == "backward" and virtual == last:
            edges.add((index[(stage, "forward", chunk, microbatch)], i))
        if kind == "backward" and virtual < last:
            edges.add((index[((virtual + 1) % stages, "backward", (virtual + 1) // stages, microbatch)], i))
    units = tuple(Unit(stage) for stage in range(stages))
    return make_graph(units, vertices, sorted(edges), chains)


def make_graph(units, vertices, edges, chains, lag_s=None):
    pairs = np.array(edges, dtype=np.int64).reshape(-1, 2)
    lags = np.zeros(len(pairs)) if lag_s is None else np.array(lag_s, dtype=np.float64)
    return Graph(tuple(units), tuple(vertices), pairs, lags, tuple(np.array(chain, dtype=np.int64) for chain in chains))


def gpu_tables(graph, *, clocks=(1400, 1200, 1000, 800), stage_s=(1.0, 1.1, 0.9, 1.2)):
    """Made-up tables: a tenth of the time does not depend on the clock, dynamic power falls with its cube; backwards take twice."""
    mhz = np.array(clocks, dtype=np.int64)
    ratio = mhz[0] / mhz
    time_s = np.zeros((len(graph.vertices), len(mhz)))
    for v, vertex in enumerate(graph.vertices):
        if vertex.kind in ("forward", "backward"):
            work_s = stage_s[graph.units[vertex.unit].stage % len(stage_s)] * (1 if vertex.kind == "forward" else 2)
            time_s[v] = work_s * (0.1 + 0.9 * ratio)
    return Tables(mhz, time_s, time_s * (90 + 300 / ratio**3))


def small_problem(stages=2, chunks=1, microbatches=3, *, clocks=(1400, 1200, 1000, 800), stage_s=(1.0, 1.1, 0.9, 1.2), **settings):
    graph = ideal_graph(stages, chunks, microbatches)
    return Problem(graph, gpu_tables(graph, clocks=clocks, stage_s=stage_s), **{"blocking_power_w": 80.0, **settings})


def chain_problem(time_s, energy_j, *, clocks=None, **settings):
    """One unit whose operations follow each other; (n, F) tables."""
    time_s, energy_j = np.array(time_s, dtype=float), np.array(energy_j, dtype=float)
    n, columns = time_s.shape
    vertices = [Vertex(0, "forward", 0, i) for i in range(n)]
    graph = make_graph([Unit(0)], vertices, [(i, i + 1) for i in range(n - 1)], [range(n)])
    mhz = np.array(clocks or [1400 - 100 * i for i in range(columns)], dtype=np.int64)
    return Problem(graph, Tables(mhz, time_s, energy_j), **{"blocking_power_w": 0.0, **settings})
