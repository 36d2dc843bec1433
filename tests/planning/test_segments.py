"""Few-switch plans: against enumeration of all of them, and what every one of them must keep."""

import itertools

import numpy as np
import pytest

from megatron_energy.errors import UserError
from megatron_energy.pipeline.replay import makespans, replay
from megatron_energy.planning import policies
from megatron_energy.planning.bound import bound
from megatron_energy.planning.columns import limit
from megatron_energy.planning.early import early_raises_j
from megatron_energy.planning.policies import POLICIES, solve
from megatron_energy.planning.segments import EFFORTS, ENOUGH, Effort, Search, few_switches
from megatron_energy.planning.sequences import Space, clocked_vertices, count_switches
from megatron_energy.planning.thinning import thinned
from tests.planning.pipelines import chain_problem, small_problem
from tests.planning.problems import real_problem

QUICK = Effort(rounds=6, time_s=60.0)
THINNED = Effort(rounds=6, time_s=60.0, nodes=1)


def most_switches(problem, clocks):
    return max(count_switches(clocks[member]) for member in clocked_vertices(problem))


def with_early_raises_j(problem, clocks, lead_s):
    done = replay(problem.graph, problem.durations(clocks))
    raises_j = early_raises_j(problem, clocked_vertices(problem), clocks, done, lead_s)
    return problem.energy_j(problem.effective_j(clocks), done.makespan_s) + raises_j.sum()


def in_time(problem, clocks):
    return replay(problem.graph, problem.tables.time_s[np.arange(len(clocks)), clocks]).makespan_s <= problem.deadline_s * (1 + 1e-11)


def cheapest_by_enumeration(problem, switches):
    """Least energy over every choice of clocks with so few switches."""
    members = clocked_vertices(problem)
    columns = problem.tables.time_s.shape[1]
    choices = [[s for s in itertools.product(range(columns), repeat=len(m)) if count_switches(np.array(s)) <= switches] for m in members]
    states = np.zeros((len(problem.graph.vertices), int(np.prod([len(c) for c in choices]))), dtype=np.int64)
    for position, combination in enumerate(itertools.product(*choices)):
        for member, sequence in zip(members, combination, strict=True):
            states[member, position] = sequence
    rows = np.arange(len(states))[:, np.newaxis]
    length_s = makespans(problem.graph, problem.tables.time_s[rows, states])
    energy_j = problem.cost_j[rows, states].sum(axis=0) + problem.horizon_power_w * np.maximum(length_s, problem.earliest_horizon_s)
    return float(energy_j[length_s <= problem.deadline_s * (1 + 1e-11)].min())


@pytest.mark.parametrize("switches", [0, 2, 3])
@pytest.mark.parametrize(
    "settings", [{}, {"slowdown": 0.1}, {"straggler": 1.15}, {"stage_s": (1.0, 0.6)}, {"stage_s": (0.7, 1.0), "slowdown": 0.05}]
)
def test_small_plans_come_close_to_the_best_of_all(switches, settings):
    problem = small_problem(2, 1, 2, clocks=(1400, 1100, 800), **settings)
    found = few_switches(problem, bound(problem), switches, QUICK)
    assert most_switches(problem, found.clocks) <= switches
    assert in_time(problem, found.clocks)
    saved_percent = problem.evaluate(found.clocks).saved_percent
    best_percent = problem.saved_percent(cheapest_by_enumeration(problem, switches))
    assert 0.93 * best_percent <= saved_percent + 1e-9
    assert saved_percent <= best_percent + 1e-9


@pytest.mark.parametrize("switches", [2, 3, 12])
@pytest.mark.parametrize(
    "settings", [{}, {"straggler": 1.15}, {"stage_s": (0.7, 1.0), "slowdown": 0.05}, {"blocking_power_w": 0.0}], ids=str
)
def test_plans_thinned_out_come_close_to_the_best_of_all_too(switches, settings):
    problem = small_problem(2, 1, 2, clocks=(1400, 1100, 800), **settings)  # four operations per unit: 12 switches are all that there are
    found = few_switches(problem, bound(problem), switches, THINNED)
    assert found.complete
    assert most_switches(problem, found.clocks) <= switches
    assert in_time(problem, found.clocks)
    best_percent = problem.saved_percent(cheapest_by_enumeration(problem, switches))
    assert 0.93 * best_percent <= problem.evaluate(found.clocks).saved_percent + 1e-9 <= best_percent + 2e-9


def test_a_plan_that_is_late_once_thinned_out_is_not_gone_on_from():
    # four operations, A B A B, at most as long as at the highest clock: the best plan, [1, 2, 1, 2], cannot lose a switch and stay in time
    time_s, energy_j = [[1, 0.5, 1.5], [1, 1.6, 1.5]] * 2, [[10, 8, 9.5], [10, 6, 6]] * 2
    problem = chain_problem(time_s, energy_j)
    least = bound(problem)
    assert not in_time(problem, thinned(problem, least, np.array([1, 2, 1, 2]), 4, 2, 0.0, np.inf))
    found = few_switches(problem, least, 2, THINNED)
    assert in_time(problem, found.clocks)
    assert problem.effective_j(found.clocks) == pytest.approx(cheapest_by_enumeration(problem, 2))


@pytest.mark.parametrize("p2p", ["ideal", "overlap", "overlap-wait", "batched"])
def test_real_communication_keeps_the_deadline_and_most_of_the_bound(p2p):
    problem = real_problem(p2p)
    found = few_switches(problem, least := bound(problem), 8, QUICK)
    result = problem.evaluate(found.clocks)
    assert found.complete
    assert result.slowdown_percent <= 0.0
    assert in_time(problem, found.clocks)
    assert most_switches(problem, found.clocks) <= 8
    assert result.saved_percent >= 0.9 * problem.saved_percent(least.energy_j)
    assert result.saved_percent <= problem.saved_percent(least.energy_j)


def test_same_problem_same_plan():
    problem = real_problem()
    least = bound(problem)
    first, second = (few_switches(problem, least, 4, QUICK).clocks for _ in range(2))
    assert first.tolist() == second.tolist()


def test_one_switch_equals_none():
    problem = real_problem()
    least = bound(problem)
    assert most_switches(problem, few_switches(problem, least, 1, QUICK).clocks) == 0


def test_no_worse_than_a_plan_that_is_known():
    problem = real_problem(slowdown=0.05)
    least = bound(problem)
    few = few_switches(problem, least, 2, QUICK).clocks
    none_at_all = Effort(rounds=0, time_s=60.0)
    assert few_switches(problem, least, 8, none_at_all, starts=[few]).clocks.tolist() == few.tolist()
    late = np.full_like(few, 15)
    assert not in_time(problem, late)
    switching = np.arange(len(few)) % 2
    kept = few_switches(problem, least, 2, none_at_all, starts=[late, switching]).clocks
    assert kept.tolist() == problem.baseline_clocks.tolist()


@pytest.mark.parametrize("lead_s", [0.0, 0.2])
def test_no_worse_than_a_plan_that_is_known_where_plans_are_thinned_out(lead_s):
    problem = small_problem(2, 1, 3, clocks=(1400, 1100, 800), slowdown=0.05)
    least = bound(problem)
    known = few_switches(problem, least, 3, Effort(24, 60.0), lead_s=lead_s).clocks
    found = few_switches(problem, least, 3, Effort(0, 60.0, nodes=1), lead_s=lead_s, starts=[known]).clocks
    assert with_early_raises_j(problem, found, lead_s) <= with_early_raises_j(problem, known, lead_s) * (1 + 1e-9)


@pytest.mark.parametrize(
    "effort",
    [
        Effort(3, -1.0),
        Effort(3, -1.0, nodes=1),
        Effort(3, -1.0, proof_rounds=2, proof_s=60.0),
        Effort(24, -1.0, proof_rounds=2, proof_s=60.0),
    ],
    ids=["default", "from a plan with more", "all rounds before the proof", "rounds after the proof"],
)
def test_a_search_that_runs_out_of_time_says_so(effort):
    problem = small_problem(2, 1, 3)
    found = few_switches(problem, bound(problem), 8, effort)
    assert not found.complete
    assert in_time(problem, found.clocks)
    assert most_switches(problem, found.clocks) <= 8


@pytest.mark.parametrize("complete", [(False, True), (True, False), (True, True)], ids=str)
def test_all_searches_of_a_solution_have_to_be_complete(complete, monkeypatch):
    problem = small_problem(2, 1, 2, slowdown=100.0)  # later than any plan needs: searched twice
    searches = iter([Search(problem.baseline_clocks, None, each) for each in complete])
    monkeypatch.setattr(policies, "few_switches", lambda *_, **__: next(searches))
    assert solve(problem, "segments").complete == all(complete)
    assert not list(searches)


def test_large_graphs_get_fewer_rounds_and_the_largest_no_branch_and_bound():
    effort = Effort(21, 60.0, nodes=1)
    sizes = (100, 500, 1500, 3000, 10_000)
    assert [effort.sized(n).rounds for n in sizes] == [21, 9, 6, 3, 3]
    assert [effort.sized(n).nodes for n in sizes] == [1, 1, 1, 1, 0]
    assert [Effort(21, 60.0, 200, 60.0, nodes=1).sized(n).proof_rounds for n in (100, 512, 1024, 10_000)] == [200, 200, 100, 10]
    assert Effort(4, 60.0).sized(10_000) == Effort(4, 60.0)
    assert Effort(3, 60.0, nodes=1).sized(1000).rounds == 3


def test_all_clocks_chosen_together_and_the_same_again():
    problem = real_problem("batched")
    least, effort = bound(problem), Effort(3, 60.0, nodes=1)
    with_nodes, again = (few_switches(problem, least, ENOUGH, effort) for _ in range(2))  # so many that both begin with the same plan
    without = few_switches(problem, least, ENOUGH, Effort(3, 60.0))
    assert with_nodes.complete
    assert in_time(problem, with_nodes.clocks)
    assert with_nodes.clocks.tolist() == again.clocks.tolist()
    assert problem.evaluate(with_nodes.clocks).saved_percent >= problem.evaluate(without.clocks).saved_percent - 1e-9


def test_a_clock_off_the_hull_of_noisy_measurements():
    # the lowest clock for both, though it is off the hull of the first, and dearer than the highest for the second
    problem = chain_problem([[1, 1.5, 1.4], [1, 1, 1]], [[10, 7, 7.7], [5, 9, 5.1]], slowdown=0.2)
    for effort in (QUICK, THINNED, Effort(3, 60.0, 20, 60.0)):
        found = few_switches(problem, bound(problem), 0, effort)
        assert found.clocks.tolist() == [2, 2]
        assert found.limit_energy_j is None or found.limit_energy_j <= problem.effective_j(found.clocks) * (1 + 1e-9)


def test_early_raises_are_avoided_where_they_cost_more_than_they_save():
    # a raise comes early by nearly a whole operation: alternating clocks would gain nothing
    time_s, energy_j = [[1, 1.5]] * 4, [[100, 80]] * 4
    problem = chain_problem(time_s, energy_j, slowdown=0.25)
    least = bound(problem)
    free = few_switches(problem, least, 8, QUICK).clocks
    costly = few_switches(problem, least, 8, QUICK, lead_s=1.4).clocks
    assert problem.effective_j(free) == pytest.approx(400 - 2 * 20)
    assert count_switches(free) >= count_switches(costly) == 2


def test_limit_is_proven_below_every_plan_and_above_the_bound():
    problem = small_problem(2, 1, 2, clocks=(1400, 1100, 800), stage_s=(1.0, 0.6))
    least = bound(problem)
    for switches in (0, 2):
        space = Space(problem, switches)
        proof = limit(space, least, [space.baseline()], 100, float("inf"))
        assert least.energy_j * (1 - 1e-9) <= proof.energy_j <= cheapest_by_enumeration(problem, switches) * (1 + 1e-9)


def test_the_last_mix_tells_where_clocks_change():
    # 6 s for four operations that take 1 or 2 s: one clock throughout, half of the time each; or the first two slow and the others fast
    problem = chain_problem([[1, 2]] * 4, [[10, 7], [10, 7], [10, 9], [10, 9]], slowdown=0.5)
    for switches, expected in ((0, [0, 0, 0, 0]), (2, [1, 0, 1, 0])):
        space = Space(problem, switches)
        proof = limit(space, bound(problem), [space.baseline()], 100, float("inf"))
        assert proof.change_share[0].tolist() == pytest.approx(expected)


def test_a_limit_of_no_rounds_still_has_a_mix():
    problem = chain_problem([[1, 2]], [[100, 60]])
    space = Space(problem, 2)
    proof = limit(space, bound(problem), [space.baseline()], 0, float("inf"))
    assert proof.energy_j == -np.inf
    assert proof.state.tolist() == [0]
    assert proof.complete


def test_a_limit_that_runs_out_of_time_says_so_and_still_holds():
    problem = small_problem(2, 1, 2, clocks=(1400, 1100, 800), stage_s=(1.0, 0.6))
    space, least = Space(problem, 2), bound(problem)
    proof, short = (limit(space, least, [space.baseline()], 100, stop_at_s) for stop_at_s in (float("inf"), 0.0))
    assert proof.complete
    assert not short.complete
    assert short.energy_j <= proof.energy_j * (1 + 1e-9)


def test_limit_is_tight_where_mixing_sequences_is_no_gain():
    # one operation, deadline at the second clock: both the limit and the best plan are that clock
    problem = chain_problem([[1, 2, 4]], [[100, 60, 50]], slowdown=1.0)
    space = Space(problem, 0)
    proof = limit(space, bound(problem), [space.baseline()], 100, float("inf"))
    assert proof.energy_j == pytest.approx(60.0, rel=1e-6)


@pytest.mark.parametrize("settings", [{}, {"slowdown": 0.08}, {"straggler": 1.1}])
def test_every_policy_keeps_the_deadline_and_never_beats_the_bound(settings, monkeypatch):
    monkeypatch.setitem(EFFORTS, "default", Effort(rounds=2, time_s=60.0))
    problem = real_problem(**settings)
    for policy in POLICIES:
        found = solve(problem, policy, max_switches=4)
        energy_j = problem.energy_j(problem.effective_j(found.clocks), problem.iteration_s(found.clocks))
        assert in_time(problem, found.clocks), policy
        assert found.bound.energy_j <= energy_j * (1 + 1e-9), policy
        assert energy_j <= problem.baseline_energy_j * (1 + 1e-12), policy


def test_unknown_policy_and_effort():
    with pytest.raises(UserError, match="unknown policy 'magic'"):
        solve(small_problem(), "magic")
    with pytest.raises(UserError, match="unknown effort 'some'"):
        solve(small_problem(), "segments", effort="some")
