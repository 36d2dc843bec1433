"""Large jobs: the exact bound of a long iteration, reached through shorter ones.

The simplex method takes time that grows faster than the graph: seconds for 8,192 operations, minutes for 30,000. But an iteration of many
microbatches is a short one with its steady state drawn out (:mod:`megatron_energy.planning.stretch`), and so is the optimal basis of its
linear program. Each length therefore starts from about half of it. The result is as exact as without: it is an optimum of the whole
program, and its prices prove so (``Bound.gap_j``), however far the start was from it. In practice it is close, often the optimum itself.
"""

from collections.abc import Callable, Iterator

from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.planning.bound import Bound, BoundProgram, bound
from megatron_energy.planning.problem import Problem
from megatron_energy.planning.stretch import period_of, stretch

LARGE = 4096
"""Vertices below which the program is solved at once: it takes a second or less."""

STEADY = 4
"""Pipelines' worth of microbatches, or groups, with which an iteration has a steady state to draw out."""


def scaled_bound(resized: Callable[[int], Problem], schedule: Schedule) -> Bound:
    """The bound of a job of any size; arguments and errors as of :func:`solved_program`."""
    problem = resized(schedule.microbatches)
    if len(problem.graph.vertices) < LARGE:
        return bound(problem)
    return solved_program(resized, schedule).at(problem.deadline_s, problem.earliest_horizon_s)


def solved_program(resized: Callable[[int], Problem], schedule: Schedule) -> BoundProgram:
    """The linear program of a job, standing at the optimum of its deadline: ``at`` gives that one at once and others soon.

    Args:
        resized: the job with another number of microbatches.
        schedule: the job's own schedule.

    Raises:
        SolverError: no clocks keep the deadline.
    """
    shortest, *longer = sorted(lengths(schedule))
    program = _solved(BoundProgram(resized(shortest)))
    for microbatches in longer:
        short, program = program, BoundProgram(resized(microbatches))
        program.start_like(short, stretch(short.problem, program.problem, period_of(schedule)))
        _solved(program)
    return program


def _solved(program: BoundProgram) -> BoundProgram:
    program.at(program.problem.deadline_s, program.problem.earliest_horizon_s)
    return program


def lengths(schedule: Schedule) -> Iterator[int]:
    """Microbatches of the schedule, then of about half as long ones, down to one that still has a steady state."""
    period, microbatches = period_of(schedule), schedule.microbatches
    least = STEADY * max(schedule.stages, period)
    while True:
        yield microbatches
        shorter = microbatches - (microbatches // 2) // period * period
        if shorter < least or shorter == microbatches:
            return
        microbatches = shorter
