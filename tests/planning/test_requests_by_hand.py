"""Clock requests and the lead, on a chain whose times can be added up in the head."""

import numpy as np
import pytest

from megatron_energy.pipeline.build import build_graph
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.planning.problem import Problem
from megatron_energy.planning.requests import Timing, enforce_lead, unit_plans
from megatron_energy.profiles.tables import Tables


@pytest.fixture
def problem():
    """One stage, two microbatches: F0 B0 F1 B1, each 1 s at every clock, cheaper at lower ones."""
    graph = build_graph(Schedule(stages=1, microbatches=2))
    tables = Tables(np.array([1400, 1200, 1000]), np.ones((4, 3)), np.tile([300.0, 250.0, 200.0], (4, 1)))
    return Problem(graph, tables, blocking_power_w=0.0)


TIMING = Timing(np.array([0.0, 1.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0, 4.0]), 4.0)


def test_a_segment_shorter_than_the_lead_takes_the_clock_of_the_raise_after_it(problem):
    clocks = np.array([0, 0, 2, 1])  # 1400 1400 1000 1200: the raise to 1200 would have to be asked for 1.5 s earlier
    assert enforce_lead(problem, clocks, TIMING.start_s, 4.0, 1.5).tolist() == [0, 0, 1, 1]
    assert enforce_lead(problem, clocks, TIMING.start_s, 4.0, 0.5).tolist() == clocks.tolist()


def test_a_raise_is_anchored_early_and_a_lower_at_its_boundary(problem):
    (unit,) = unit_plans(problem, np.array([2, 2, 2, 0]), TIMING, 1.25)
    lower, raised = unit.requests
    assert (lower.kind, lower.microbatch, lower.edge, lower.clock_mhz, lower.delay_s) == ("forward", 0, "begin", 1000, 0.0)
    # needed at 3.0 s, so asked for at 1.75 s: 0.75 s after the begin of B0, before which B0 itself and F1 may begin
    assert (raised.kind, raised.microbatch, raised.edge, raised.clock_mhz) == ("backward", 0, "begin", 1400)
    assert raised.delay_s == pytest.approx(0.75)
    assert raised.ahead == 2


def test_a_raise_for_the_first_operation_is_anchored_in_the_iteration_before(problem):
    (unit,) = unit_plans(problem, np.array([0, 2, 2, 2]), TIMING, 0.25)
    raised = next(r for r in unit.requests if r.clock_mhz == 1400)
    # needed at 4.0 s (the next iteration's begin), asked for at 3.75 s: during B1, which begins at 3.0 s
    assert (raised.kind, raised.microbatch, raised.edge, raised.ahead) == ("backward", 1, "begin", 1)
    assert raised.delay_s == pytest.approx(0.75)


def test_a_lower_knows_how_long_it_is_until_the_next_raise_is_asked_for(problem):
    (unit,) = unit_plans(problem, np.array([0, 1, 2, 2]), TIMING, 0.25)
    # down at 1 s and at 2 s, up again at 4 s (the next iteration's begin), asked for at 3.75 s
    assert [(r.clock_mhz, r.raise_in_s) for r in unit.requests] == [(1400, None), (1200, pytest.approx(2.75)), (1000, pytest.approx(1.75))]


def test_a_lower_after_which_the_raise_is_due_at_once_knows_that_too(problem):
    (unit,) = unit_plans(problem, np.array([0, 0, 2, 1]), TIMING, 1.0)
    lower = next(r for r in unit.requests if r.clock_mhz == 1000)
    assert lower.raise_in_s == pytest.approx(0.0)
