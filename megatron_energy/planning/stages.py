"""One clock per stage, all iteration long."""

from megatron_energy.pipeline.graph import IntArray
from megatron_energy.planning.problem import Problem
from megatron_energy.planning.tied_lp import tied_bound
from megatron_energy.planning.tied_search import TiedSearch
from megatron_energy.planning.ties import by_stage
from megatron_energy.planning.uniform import uniform


def stages(problem: Problem) -> IntArray:
    """(n,) clock columns with one clock per unit, the cheapest that were found; never worse than
    :func:`~megatron_energy.planning.uniform.uniform`. The deadline is kept exactly.
    """
    ties = by_stage(problem)
    if not ties.count:
        return ties.free
    return TiedSearch(problem, ties).best(tied_bound(problem, ties).shares, [uniform(problem)])
