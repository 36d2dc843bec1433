"""EnvPipe's schedule with further warm-up forwards."""

import numpy as np
import pytest

from megatron_energy.errors import UserError
from megatron_energy.pipeline.build import build_graph
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.planning.envpipe import Settings, reconfigure
from megatron_energy.planning.envpipe_warmup import against, extra_forwards, with_extra_forwards
from megatron_energy.planning.problem import Problem
from megatron_energy.profiles.files import load_profile
from megatron_energy.profiles.tables import build_tables
from tests.planning.problems import problem_of, profile_of, with_tables


def order(problem, unit):
    return " ".join(f"{v.kind[0].upper()}{v.microbatch}" for v in (problem.graph.vertices[i] for i in problem.graph.chains[unit]))


def even(stages, microbatches, backward_s=2.0):
    """Forwards of 1 s and backwards of ``backward_s`` at one clock only."""
    problem = problem_of(profile_of([1.0] * stages), microbatches)
    forward = np.array([v.kind == "forward" for v in problem.graph.vertices])[:, np.newaxis]
    return with_tables(problem, np.where(forward, [1.0], [backward_s]), [1.0])


def test_forwards_that_fit_into_the_later_stages_backwards():
    """Backwards of 2 s and forwards of 1 s: 2 for each later stage, at most M - (S - s)."""
    assert extra_forwards(even(4, 20)) == [6, 4, 2, 0]
    assert extra_forwards(even(4, 20, 2.9)) == [8, 5, 2, 0]
    assert extra_forwards(even(4, 9)) == [5, 4, 2, 0]
    assert extra_forwards(even(4, 6)) == [2, 3, 2, 0]  # stage 0 runs all six forwards first: it does not hold back the next
    assert extra_forwards(even(4, 3)) == [0, 0, 1, 0]  # fewer microbatches than stages
    assert extra_forwards(even(1, 5)) == [0]


def test_memory_limits_them():
    assert extra_forwards(even(4, 20), memory_forwards=3) == [3, 3, 2, 0]
    assert extra_forwards(even(4, 20), memory_forwards=0) == [0, 0, 0, 0]
    with pytest.raises(UserError, match="cannot keep -1 further forwards"):
        extra_forwards(even(4, 20), memory_forwards=-1)


def test_no_stage_gets_more_than_the_one_before():
    problem = even(3, 20)
    time_s = problem.tables.time_s.copy()
    slow = [i for i, v in enumerate(problem.graph.vertices) if v.unit == 0 and v.kind == "forward"]
    time_s[slow] = 4.0  # one forward in the 2 x 2 s of the later stages' backwards, where stage 1 could have two
    assert extra_forwards(with_tables(problem, time_s, problem.tables.energy_j)) == [1, 1, 0]


def test_order_and_dependencies_by_hand():
    problem = with_extra_forwards(even(2, 4), [1, 0])
    assert order(problem, 0) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert order(problem, 1) == "F0 B0 F1 B1 F2 B2 F3 B3"
    roles = [v.role for v in problem.graph.vertices][:8]
    assert roles == ["warm-up"] * 2 + ["steady"] * 4 + ["cool-down"] * 2
    named = [f"{v.unit}{v.kind[0].upper()}{v.microbatch}" for v in problem.graph.vertices]
    across = {(named[a], named[b]) for a, b in problem.graph.edges if named[a][0] != named[b][0]}
    assert across == {(f"0F{m}", f"1F{m}") for m in range(4)} | {(f"1B{m}", f"0B{m}") for m in range(4)}


def test_without_further_forwards_it_is_the_plain_schedule():
    plain = problem_of(profile_of([1.0, 1.3, 0.9]), 5)
    same = with_extra_forwards(plain, [0, 0, 0])
    assert same.graph.vertices == plain.graph.vertices
    assert same.graph.edges.tolist() == plain.graph.edges.tolist()
    assert same.tables.time_s.tolist() == plain.tables.time_s.tolist()
    clocks = np.arange(len(plain.graph.vertices)) % 4
    assert against(plain, same, clocks) == plain.evaluate(clocks)


def test_the_rest_of_the_iteration_comes_along():
    profile = profile_of([1.0, 1.0])
    for stage in (0, 1):
        profile.curves[stage, -1, "grad-sync"] = profile.curves[stage, -1, "optimizer"] = profile.curves[0, -1, "forward"]
    graph = build_graph(Schedule(2, 4, p2p="ideal"), grad_sync=True, optimizer=True)
    plain = Problem(graph, build_tables(graph, profile), 80.0)
    other = with_extra_forwards(plain, [1, 0])
    assert sorted(v.kind for v in other.graph.vertices) == sorted(v.kind for v in plain.graph.vertices)
    assert other.baseline_energy_j == pytest.approx(plain.baseline_energy_j)
    assert other.baseline_s == pytest.approx(plain.baseline_s)  # the last stage is the bottleneck: nothing comes earlier


@pytest.mark.parametrize(("extra", "stages"), [([1], 2), ([1, 0, 0], 2)])
def test_one_number_per_stage(extra, stages):
    with pytest.raises(UserError, match=r"one number of further forwards per stage \(2\)"):
        with_extra_forwards(even(stages, 4), extra)


def test_bubbles_move_to_where_they_can_be_used(data_dir):
    """GPT-3, 24 microbatches: the published order saves 13.54%, EnvPipe's own 20.39% with 10 further forwards on the first stage."""
    profile = load_profile(data_dir / "perseus_sosp24" / "stage_profile" / "gpt3-175b+a100_sxm_bf16.csv", 10)
    graph = build_graph(Schedule(8, 24, p2p="ideal"))
    plain = Problem(graph, build_tables(graph, profile), 83.64)
    saved = {}
    for memory in (0, 4, None):
        other = with_extra_forwards(plain, extra_forwards(plain, memory))
        found = against(plain, other, reconfigure(other, Settings()).clocks)
        assert found.slowdown_percent <= 1e-9
        saved[memory] = found.saved_percent
    assert saved == {0: pytest.approx(13.54, abs=0.01), 4: pytest.approx(19.05, abs=0.01), None: pytest.approx(20.39, abs=0.01)}
