"""One clock per stage, direction and role: warm-up, steady and cool-down of forward and of backward."""

from megatron_energy.pipeline.graph import IntArray
from megatron_energy.planning.problem import Problem
from megatron_energy.planning.stages import stages
from megatron_energy.planning.tied_lp import tied_bound
from megatron_energy.planning.tied_search import TiedSearch
from megatron_energy.planning.ties import by_role


def roles(problem: Problem) -> IntArray:
    """(n,) clock columns with one clock per unit, direction and role, cheapest that was found; keeps the deadline, never worse than
    :func:`~megatron_energy.planning.stages.stages`.

    The mixes of clocks are the exact optimum; the rounding to one real clock per role is a search. The deadline is kept exactly.
    """
    ties = by_role(problem)
    if not ties.count:
        return ties.free
    return TiedSearch(problem, ties).best(tied_bound(problem, ties).shares, [stages(problem)])
