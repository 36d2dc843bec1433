import numpy as np
import pytest

from megatron_energy.pipeline.graph import Unit, Vertex
from megatron_energy.planning.moves import Prices, intervals, priced
from megatron_energy.planning.problem import Problem
from megatron_energy.planning.sequences import Candidate, Space, clocked_vertices, count_switches, distinct, useful_columns
from megatron_energy.profiles.tables import Tables
from tests.planning.pipelines import chain_problem, make_graph, small_problem


@pytest.mark.parametrize(
    ("sequence", "switches"), [([3, 3, 3], 0), ([3, 3, 1], 2), ([1, 3, 1], 2), ([1, 2, 3], 3), ([1, 2, 1, 2], 4), ([5], 0)]
)
def test_switches_are_counted_around_the_cycle(sequence, switches):
    assert count_switches(np.array(sequence)) == switches


def test_fixed_steps_and_joins_have_no_clock_to_choose():
    vertices = [Vertex(0, "forward", 0, 0), Vertex(0, "join"), Vertex(0, "grad-sync"), Vertex(0, "optimizer")]
    graph = make_graph([Unit(0)], vertices, [(0, 1), (1, 2), (2, 3)], [range(4)])
    time_s = np.array([[1.0, 1.0], [0, 0], [2, 2], [3, 4]])
    problem = Problem(graph, Tables(np.array([1400, 1000]), time_s, time_s * 100), 80.0)
    assert [member.tolist() for member in clocked_vertices(problem)] == [[0, 3]]


def test_clocks_below_every_cheapest_one_are_useless():
    problem = chain_problem([[1, 2, 3, 4]], [[10, 7, 6, 8]])
    assert useful_columns(problem) == 3
    assert useful_columns(chain_problem([[1, 2, 3, 4]], [[10, 7, 6, 8]], baseline_column=3)) == 4


def test_a_clock_off_the_hull_is_useful_where_it_is_faster_or_cheaper():
    assert useful_columns(chain_problem([[1.0, 1.5, 1.4]], [[10, 7, 7.7]])) == 3  # faster than the one above it
    assert useful_columns(chain_problem([[1.0, 1.5, 1.5]], [[10, 7, 7.7]])) == 2
    assert useful_columns(chain_problem([[1.0, 1.5, 1.5], [1.0, 1.0, 1.0]], [[10, 7, 7.7], [5, 9, 5.1]])) == 3  # cheaper for the other one


def test_cost_of_early_raises_by_hand():
    # operations of 2 s at 100 W or 4 s at 25 W; the lead is half a second
    problem = chain_problem([[2, 4], [2, 4], [2, 4]], [[200, 100], [200, 100], [200, 100]], slowdown=2.0)
    space = Space(problem, 8, lead_s=0.5)
    state = np.array([0, 1, 0])
    space.price_raises(state)
    # a raise to the first clock half a second early: an eighth of the slow operation before it runs at 200 instead of 100 J
    assert space.raises(0, state) == pytest.approx(100 / 8)
    assert space.cost(state) == pytest.approx(200 + 100 + 200 + 100 / 8)
    assert space.raises(0, np.array([0, 0, 0])) == 0.0
    # the wrap: the last operation of the iteration before runs into the lead of the first
    wrapped = np.array([0, 0, 1])
    space.price_raises(wrapped)
    assert space.raises(0, wrapped) == pytest.approx(100 / 8)


def test_lead_that_falls_into_waiting_costs_nothing():
    # unit 1 waits 2 s for unit 0 before its operation: a raise 1 s early hits no operation of its own but the one long before
    vertices = [Vertex(1, "forward", 0, 0), Vertex(0, "forward", 0, 0), Vertex(1, "forward", 0, 1)]
    graph = make_graph([Unit(0), Unit(1)], vertices, [(0, 2), (1, 2)], [[1], [0, 2]])
    time_s = np.array([[1.0, 2.0], [4.0, 8.0], [1.0, 2.0]])
    problem = Problem(graph, Tables(np.array([1400, 700]), time_s, np.array([[10.0, 6], [40, 30], [10, 6]])), 5.0)
    space = Space(problem, 8, lead_s=1.0)
    state = np.array([1, 0, 0])
    space.price_raises(state)
    assert space.raises(1, state[space.members[1]]) == 0.0


def priced_by(space, state, tau_s=1.0):
    _, share = space.problem.paths.prices(space.durations(state), tau_s)
    return Prices(share, 1000.0, tau_s)


@pytest.mark.parametrize("switches", [0, 1, 2, 5])
def test_candidates_keep_the_number_of_switches(switches):
    problem = small_problem(3, 2, 6)
    space = Space(problem, switches)
    rng = np.random.default_rng(switches)
    state = space.baseline()
    seen = 0
    for _ in range(4):
        prices = priced_by(space, state)
        found = priced(space, state, prices, (0.5, 2.0), (0.1, 1.0), rng) + intervals(space, state, prices, 20)
        for candidate in found:
            assert candidate.sequence.shape == space.members[candidate.unit].shape
            assert 0 <= candidate.sequence.min() <= candidate.sequence.max() < space.clocks
            assert count_switches(candidate.sequence) <= switches
        found = distinct(found, state, space.members)
        seen += len(found)
        state = space.apply(state, found[:1])
    assert seen > 0 or switches < 2


def test_trials_tell_what_each_candidate_changes():
    problem = small_problem(2, 1, 3)
    space = Space(problem, 8)
    state = space.baseline()
    one = Candidate(1, np.array([2, 2, 1, 1, 0, 3]))
    durations, gain = space.trials(state, [one, Candidate(0, state[space.members[0]])])
    after = space.apply(state, [one])
    assert durations[:, 0] == pytest.approx(problem.durations(after))
    assert durations[:, 1] == pytest.approx(problem.durations(state))
    assert gain == pytest.approx([problem.effective_j(after) - problem.effective_j(state), 0.0])


def test_distinct_drops_repetitions_and_what_changes_nothing():
    problem = small_problem(2, 1, 1)
    space = Space(problem, 8)
    state = space.baseline()
    new, same, other = (Candidate(unit, np.array(sequence)) for unit, sequence in ((0, [1, 0]), (0, [0, 0]), (1, [1, 0])))
    kept = distinct([new, same, Candidate(0, np.array([1, 0])), other], state, space.members)
    assert [(c.unit, c.sequence.tolist()) for c in kept] == [(0, [1, 0]), (1, [1, 0])]
