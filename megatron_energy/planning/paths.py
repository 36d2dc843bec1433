"""Smooth longest paths through a graph, with the price that each vertex has on them.

Many paths of a good plan are critical at once, so one change rarely shortens the iteration and a search on the exact length
stalls. The smooth length, tau x log(sum over paths of exp(length / tau)), sees all nearly critical paths; it is an upper
estimate that tends to the exact length as tau goes to 0. Its derivative by a vertex's duration is the share of paths through that
vertex: a unit flow from the sources to the sinks.
"""

import numpy as np

from megatron_energy.pipeline.graph import FloatArray, Graph, IntArray
from megatron_energy.pipeline.levels import Level


class Paths:
    """Smooth longest paths of one graph, built once and used for many plans; exact ones are in :mod:`megatron_energy.pipeline.replay`."""

    def __init__(self, graph: Graph) -> None:
        self.count = len(graph.vertices)
        self._levels = graph.levels.levels
        has_next = np.zeros(self.count, dtype=bool)
        has_next[graph.edges[:, 0]] = True
        self.sinks: IntArray = np.flatnonzero(~has_next)

    def smooth(self, duration_s: FloatArray, tau_s: float) -> FloatArray:
        """(B,) smooth longest path for each column of ``duration_s`` (n, B)."""
        end = self._first(duration_s)
        for level in self._levels[1:]:
            end[level.vertices] = _soft(end, level, tau_s) + duration_s[level.vertices]
        return _log_sum_exp(end[self.sinks], tau_s)

    def prices(self, duration_s: FloatArray, tau_s: float) -> tuple[float, FloatArray]:
        """(smooth longest path, (n,) its derivative by each duration) of one plan, ``duration_s`` (n,)."""
        column = duration_s[:, np.newaxis]
        end = self._first(column)
        starts: list[FloatArray] = []
        for level in self._levels[1:]:
            starts.append(_soft(end, level, tau_s))
            end[level.vertices] = starts[-1] + column[level.vertices]
        length = float(_log_sum_exp(end[self.sinks], tau_s)[0])
        flow = np.zeros(self.count + 1)
        flow[self.sinks] = np.exp((end[self.sinks, 0] - length) / tau_s)
        for level, start in zip(self._levels[:0:-1], starts[::-1], strict=True):
            ready = end[level.before] if level.lag_s is None else end[level.before] + level.lag_s
            np.add.at(flow, level.before, flow[level.vertices] * np.exp((ready - start)[:, :, 0] / tau_s))
        return length, flow[:-1]

    def _first(self, duration_s: FloatArray) -> FloatArray:
        """(n + 1, B) ends with the first level done. Padding (index n) never ends: it must not count as a path."""
        end = np.full((self.count + 1, duration_s.shape[1]), -np.inf)
        end[self._levels[0].vertices] = duration_s[self._levels[0].vertices]
        return end


def _soft(end: FloatArray, level: Level, tau_s: float) -> FloatArray:
    """(k, B) smooth maximum over the predecessors; every vertex after the first level has a first one."""
    ready = end[level.before] if level.lag_s is None else end[level.before] + level.lag_s
    start: FloatArray = ready[0]
    for other in ready[1:]:
        start = np.maximum(start, other) + tau_s * np.log1p(np.exp(-np.abs(start - other) / tau_s))
    return start


def _log_sum_exp(values: FloatArray, tau_s: float) -> FloatArray:
    top = values.max(axis=0)
    return np.asarray(top + tau_s * np.log(np.exp((values - top) / tau_s).sum(axis=0)), dtype=np.float64)
