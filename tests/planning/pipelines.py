"""Small pipelines for the planner's tests, written without megatron_energy.pipeline: data dependencies only."""

import numpy as np

from megatron_energy.pipeline.graph import Graph, Unit, Vertex


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
