"""Smooth lengths against the sum over all paths, and their derivative against differences."""

import numpy as np
import pytest

from megatron_energy.pipeline.graph import Unit, Vertex
from megatron_energy.pipeline.replay import makespans
from megatron_energy.planning.paths import Paths
from tests.planning.pipelines import ideal_graph, make_graph


def diamond():
    """0 -> {1, 2, 3} -> 4 and 0 -> 4, with lags; 5 stands alone."""
    vertices = [Vertex(0, "forward", 0, i) for i in range(6)]
    edges, lags = [(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4), (0, 4)], [0, 0.5, 0, 0, 0, 0.25, 1.0]
    return make_graph([Unit(0)], vertices, edges, [range(6)], lags)


def all_lengths(graph, durations):
    after = {}
    for (a, b), lag in zip(graph.edges.tolist(), graph.lag_s.tolist(), strict=True):
        after.setdefault(a, []).append((b, lag))
    targets = set(graph.edges[:, 1].tolist())

    def walk(vertex):
        if vertex not in after:
            return [durations[vertex]]
        return [durations[vertex] + lag + rest for other, lag in after[vertex] for rest in walk(other)]

    return np.array([length for v in range(len(durations)) if v not in targets for length in walk(v)])


@pytest.mark.parametrize("tau_s", [0.05, 0.5])
def test_smooth_length_is_the_log_sum_over_all_paths(tau_s):
    for graph in (diamond(), ideal_graph(2, 1, 2)):
        durations = np.random.default_rng(1).uniform(0.5, 1.5, len(graph.vertices))
        expected = tau_s * np.log(np.exp(all_lengths(graph, durations) / tau_s).sum())
        assert Paths(graph).smooth(durations[:, np.newaxis], tau_s)[0] == pytest.approx(expected)
        assert Paths(graph).prices(durations, tau_s)[0] == pytest.approx(expected)


def test_smooth_length_tends_to_the_longest_path():
    graph = ideal_graph(3, 2, 6)
    durations = np.random.default_rng(2).uniform(0.5, 1.5, (len(graph.vertices), 5))
    assert Paths(graph).smooth(durations, 1e-5) == pytest.approx(makespans(graph, durations), rel=1e-4)


def test_price_is_the_derivative():
    graph, tau_s, step = diamond(), 0.3, 1e-6
    durations = np.random.default_rng(3).uniform(0.5, 1.5, 6)
    _, price = Paths(graph).prices(durations, tau_s)
    for v in range(6):
        shifted = np.repeat(durations[:, np.newaxis], 2, axis=1)
        shifted[v] += [step, -step]
        up, down = Paths(graph).smooth(shifted, tau_s)
        assert price[v] == pytest.approx((up - down) / (2 * step), rel=1e-5)


def test_prices_are_a_unit_flow():
    graph = ideal_graph(3, 2, 6)
    paths = Paths(graph)
    _, price = paths.prices(np.random.default_rng(4).uniform(0.5, 1.5, len(graph.vertices)), 0.2)
    sources = np.setdiff1d(np.arange(len(graph.vertices)), graph.edges[:, 1])
    assert price[sources].sum() == pytest.approx(1.0)
    assert price[paths.sinks].sum() == pytest.approx(1.0)
