"""Switches that save nothing go, those that save stay."""

import numpy as np

from megatron_energy.pipeline.build import build_graph
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.planning.economy import economise
from megatron_energy.planning.problem import Problem
from megatron_energy.planning.sequences import Space, count_switches
from megatron_energy.profiles.tables import Tables


def space_of(time_s, energy_j, slowdown=0.0):
    """One stage, forward and backward of two microbatches: operations F0 B0 F1 B1, with the same table row each."""
    graph = build_graph(Schedule(stages=1, microbatches=2))
    rows = len(graph.vertices)
    tables = Tables(np.array([1400, 1200]), np.tile(time_s, (rows, 1)), np.tile(energy_j, (rows, 1)))
    return Space(Problem(graph, tables, blocking_power_w=0.0, slowdown=slowdown), switches=4)


def test_switches_that_save_next_to_nothing_go():
    space = space_of([1.0, 1.0], [300.0, 299.9999])
    state = np.array([0, 1, 0, 1])
    assert count_switches(economise(space, state)) == 0


def test_switches_that_save_stay():
    space = space_of([1.0, 1.2], [300.0, 200.0], slowdown=0.05)  # time for one slow operation of four
    state = np.array([0, 1, 0, 0])
    assert economise(space, state).tolist() == [0, 1, 0, 0]


def test_the_deadline_is_kept():
    space = space_of([1.0, 1.2], [300.0, 299.999], slowdown=0.05)  # 0.0003% saved: dropped, and not by slowing the others down
    assert economise(space, np.array([0, 1, 0, 0])).tolist() == [0, 0, 0, 0]


def test_a_longer_iteration_costs_what_waiting_draws():
    """Less 100 W of waiting, a slow operation is 10 J cheaper than a fast one; the iteration that becomes longer gives 20 J of it back."""
    graph = build_graph(Schedule(stages=1, microbatches=2))
    tables = Tables(np.array([1400, 1200]), np.tile([1.0, 1.2], (4, 1)), np.tile([300.0, 310.0], (4, 1)))
    space = Space(Problem(graph, tables, blocking_power_w=100.0, slowdown=1.0), switches=4)
    assert economise(space, np.array([1, 0, 0, 0])).tolist() == [0, 0, 0, 0]
