"""The bound by another linear program: by hand, and beside the planner's own."""

import pytest

from megatron_energy.pipeline.build import build_graph
from megatron_energy.pipeline.schedule import P2P_MODES, Schedule
from megatron_energy.planning.bound import bound
from megatron_energy.planning.problem import Problem
from megatron_energy.profiles.tables import build_tables
from tests.planning.problems import profile_of
from tests.tools.loading import load_tool

program_lp = load_tool("program_lp")


def problem_of(schedule: Schedule, **settings: float) -> Problem:
    graph = build_graph(schedule)
    profile = profile_of([1.0, 1.3, 0.8][: schedule.stages])
    return Problem(graph, build_tables(graph, profile, schedule.chunks), 80.0, **settings)


@pytest.mark.parametrize("p2p", P2P_MODES)
@pytest.mark.parametrize(("stages", "chunks", "microbatches"), [(2, 1, 3), (3, 2, 6)])
@pytest.mark.parametrize("settings", [{}, {"straggler": 1.1}, {"slowdown": 0.05}], ids=str)
def test_it_agrees(p2p: str, stages: int, chunks: int, microbatches: int, settings: dict[str, float]) -> None:
    schedule = Schedule(stages, microbatches, chunks, p2p=p2p)
    problem = problem_of(schedule, **settings)
    assert program_lp.least_energy_j(problem, schedule) == pytest.approx(bound(problem).energy_j, rel=1e-9)


def test_a_missing_transfer_is_noticed() -> None:
    """Data dependencies alone allow more: the comparison can fail."""
    schedule = Schedule(3, 6, 2, p2p="batched")
    problem = problem_of(schedule)
    assert program_lp.least_energy_j(problem, Schedule(3, 6, 2, p2p="ideal")) < bound(problem).energy_j * (1 - 1e-4)
