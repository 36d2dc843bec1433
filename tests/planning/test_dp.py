"""Dynamic programmes against enumeration of every sequence."""

import itertools

import numpy as np
import pytest

from megatron_energy.planning.dp import cheapest_cycle, cheapest_sequences


def changes(sequence, *, cyclic):
    pairs = zip(sequence, sequence[1:] + sequence[:1] if cyclic else sequence[1:], strict=False)
    return sum(a != b for a, b in pairs)


def cost(weight, sequence, raise_j=None):
    total = sum(weight[i][f] for i, f in enumerate(sequence))
    if raise_j is not None:
        total += sum(max(0.0, raise_j[i][sequence[i]] - raise_j[i][sequence[i - 1]]) for i in range(1, len(sequence)))
    return total


def every(length, clocks, switches, *, cyclic):
    return [s for s in itertools.product(range(clocks), repeat=length) if changes(s, cyclic=cyclic) <= switches]


@pytest.mark.parametrize("switches", [0, 1, 2, 3, 7])
def test_path_is_cheapest_of_all(switches):
    weight = np.random.default_rng(switches).normal(size=(4, 6, 3))
    found = cheapest_sequences(weight, switches)
    for b in range(4):
        assert changes(tuple(found[b]), cyclic=False) <= switches
        least = min(cost(weight[b], s) for s in every(6, 3, switches, cyclic=False))
        assert cost(weight[b], found[b]) == pytest.approx(least)


@pytest.mark.parametrize("switches", [0, 1, 2, 3])
def test_path_counts_raise_costs(switches):
    rng = np.random.default_rng(10 + switches)
    weight = rng.normal(size=(4, 6, 3))
    raise_j = np.sort(rng.uniform(0, 1, size=(4, 6, 3)), axis=2)[:, :, ::-1]
    found = cheapest_sequences(weight, switches, raise_j)
    for b in range(4):
        assert changes(tuple(found[b]), cyclic=False) <= switches
        least = min(cost(weight[b], s, raise_j[b]) for s in every(6, 3, switches, cyclic=False))
        assert cost(weight[b], found[b], raise_j[b]) == pytest.approx(least)


@pytest.mark.parametrize("switches", [0, 1, 2, 3, 4, 9])
def test_cycle_is_cheapest_of_all(switches):
    weight = np.random.default_rng(20 + switches).normal(size=(6, 3))
    value, found = cheapest_cycle(weight, switches)
    least = min(cost(weight, s) for s in every(6, 3, switches, cyclic=True))
    assert value == pytest.approx(least)
    assert cost(weight, found) == pytest.approx(least)
    assert changes(tuple(found.tolist()), cyclic=True) <= switches


def test_one_switch_around_a_cycle_is_none():
    weight = np.array([[0.0, 9.0], [9.0, 0.0], [0.0, 9.0]])
    assert len(set(cheapest_cycle(weight, 1)[1].tolist())) == 1
    assert cheapest_cycle(weight, 2)[1].tolist() == [0, 1, 0]
