"""How long a search goes on, and what that gives."""

import pytest

from megatron_energy.planning import segments
from megatron_energy.planning.bound import bound
from megatron_energy.planning.policies import solve
from megatron_energy.planning.segments import EFFORTS, Effort, few_switches
from tests.planning.pipelines import small_problem
from tests.planning.problems import real_problem


def test_high_effort_proves_a_limit(monkeypatch):
    monkeypatch.setitem(EFFORTS, "high", Effort(3, 60.0, 25, 60.0))
    problem = real_problem("batched")
    found = solve(problem, "segments", effort="high", max_switches=4)
    assert found.limit_energy_j is not None
    assert found.bound.energy_j <= found.limit_energy_j * (1 + 1e-9)
    energy_j = problem.energy_j(problem.effective_j(found.clocks), problem.iteration_s(found.clocks))
    assert found.limit_energy_j <= energy_j * (1 + 1e-9)


def test_high_effort_is_no_worse_than_the_default(monkeypatch):
    """Even where its own search would find nothing: a round of it, from the highest clock throughout."""
    monkeypatch.setitem(EFFORTS, "high", Effort(0, 60.0, 1, 60.0))
    monkeypatch.setitem(EFFORTS, "default", Effort(rounds=6, time_s=60.0))
    problem = real_problem()
    short, long = (problem.evaluate(solve(problem, "segments", effort=effort).clocks) for effort in ("default", "high"))
    assert long.energy_j == pytest.approx(short.energy_j)
    assert short.saved_percent > 5


def test_with_many_gpus_no_plan_is_thinned_out(monkeypatch):
    """There each removal of a switch is judged against too many others."""
    asked = []
    monkeypatch.setattr(segments, "_from_more", lambda problem, *_, **__: asked.append(1) or problem.baseline_clocks)
    problem, effort = small_problem(), Effort(rounds=1, time_s=60.0, nodes=1)
    few_switches(problem, bound(problem), 4, effort)
    assert asked
    asked.clear()
    monkeypatch.setattr(segments, "NUMBERS", 2 * len(problem.graph.vertices) - 1)  # for two GPUs
    few_switches(problem, bound(problem), 4, effort)
    assert not asked
