"""Which switches to keep, against optima found by hand."""

import numpy as np
import pytest

from megatron_energy.planning.lp import Solver
from megatron_energy.planning.mixes import Mixed, _carried, mixed
from megatron_energy.planning.polish import Polish
from megatron_energy.planning.priced_start import segments_of
from megatron_energy.planning.selection import Selection, boundaries, rounded
from megatron_energy.planning.sequences import Space, cut_positions
from megatron_energy.planning.tied_lp import tied_program
from tests.planning.pipelines import chain_problem, small_problem

SLOW_J = [9.5, 8.0, 6.0, 5.0, 9.5]
"""Five operations of 1 s and 10 J, or 2 s and so many J at the lower clock."""


def five(slowdown, **settings):
    return chain_problem([[1.0, 2.0]] * 5, [[10.0, energy] for energy in SLOW_J], slowdown=slowdown, **settings)


def mix_of(problem, state):
    state = np.array(state)
    found = mixed(problem, segments_of(problem, state, Space(problem, 4).members))
    assert found is not None
    return found


def test_a_mix_is_the_optimum_and_its_price_what_a_second_saves():
    """Within 5.5 s, half a second for the fourth operation, alone in its segment: 5 J saved per second, 2.5 J together."""
    mix = mix_of(five(0.1), [0, 0, 0, 1, 0])
    assert mix.energy_j == pytest.approx(50 - 2.5)
    assert mix.time_s.tolist() == pytest.approx([1, 1, 1, 1.5, 1])
    assert sorted(mix.column.tolist()) == pytest.approx([0, 0.5])
    assert mix.price_w.tolist() == pytest.approx([5.0] * 5)
    assert mix.deadline_w == pytest.approx(5.0)


def test_segments_that_cannot_keep_the_deadline_have_no_mix():
    # the first operation is fastest at the lower clock, the second at the higher one: one clock for both is late
    problem = chain_problem([[2.0, 1.0], [1.0, 2.0]], [[10.0, 9.0], [10.0, 9.0]], given_deadline_s=2.5)
    assert mixed(problem, segments_of(problem, np.array([0, 0]), Space(problem, 2).members)) is None
    assert mixed(problem, segments_of(problem, np.array([1, 0]), Space(problem, 2).members)) is not None


@pytest.mark.parametrize(("slowdown", "kept"), [(0.2, [3, 4]), (0.4, [2, 4])])
def test_the_boundaries_that_are_worth_most_are_kept(slowdown, kept):
    """With one second to spend the fourth operation alone is best (5 J); with two, the third and the fourth together (9 J)."""
    problem = five(slowdown)
    space = Space(problem, 2)
    found = Selection(space, boundaries(space, np.array([0, 1, 0, 1, 0] if slowdown < 0.4 else [0, 1, 2, 3, 0])))
    best = found.best(20, 3, np.inf)[0]
    assert cut_positions(best.ties.group).tolist() == kept


def test_boundaries_are_shifted_where_that_saves_more():
    """With one second to spend the fourth operation alone is best (5 J), but only boundaries around the second and third are given."""
    space = Space(five(0.2), 2)
    best = Selection(space, {0: (1, 3)}).best(20, 1, np.inf)[0]
    assert cut_positions(best.ties.group).tolist() == [3, 4]
    assert best.energy_j == pytest.approx(50 - 5)


def halves(problem, begin):
    """Two segments per unit of 16 operations: the second begins at ``begin``."""
    return segments_of(problem, (np.arange(len(problem.graph.vertices)) % 16 >= begin).astype(np.int64), Space(problem, 2).members)


def test_where_a_program_starts_from_makes_no_difference_to_its_optimum():
    problem = small_problem(3, 2, 4, slowdown=0.1)
    near, cold = mixed(problem, halves(problem, 4)), mixed(problem, halves(problem, 7))
    assert near is not None and cold is not None
    warm = mixed(problem, halves(problem, 7), near)
    assert warm is not None and warm.ties.count == near.ties.count
    assert warm.energy_j == pytest.approx(cold.energy_j, rel=1e-9)
    assert warm.energy_j != pytest.approx(near.energy_j, rel=1e-6)


def test_a_program_that_starts_from_one_like_it_takes_fewer_steps():
    problem = small_problem(3, 2, 4, slowdown=0.1)
    near = mixed(problem, halves(problem, 4))
    assert near is not None

    def steps(begin, basis_of):
        tied = tied_program(problem, halves(problem, begin))
        solver = Solver(tied.program, tied.units)
        if basis_of is not None:
            solver.start_from(_carried(basis_of, tied))
        return solver.solve().iterations

    assert steps(4, near) == 0  # it is there already
    for begin in (3, 5, 8):
        assert steps(begin, near) < 0.5 * steps(begin, None)


@pytest.mark.parametrize(("cuts", "found"), [((), []), ((1,), [])])
def test_a_unit_with_no_boundary_or_one_alone_is_one_segment(cuts, found):
    space = Space(five(0.2), 2)
    (mix,) = Selection(space, {0: cuts}).best(1, 1, np.inf)
    assert cut_positions(mix.ties.group).tolist() == found
    assert mix.ties.count == 1


def test_a_unit_without_enough_operations_for_all_switches():
    problem = chain_problem([[1.0, 2.0]] * 2, [[10.0, 9.0], [10.0, 5.0]], slowdown=0.5)
    space = Space(problem, 12)
    best = Selection(space, boundaries(space, np.array([0, 1]))).best(20, 1, np.inf)[0]
    assert cut_positions(best.ties.group).tolist() == [0, 1]
    assert best.energy_j == pytest.approx(15)


def test_every_selection_has_few_enough_boundaries_and_the_best_comes_first():
    problem = small_problem(3, 1, 4)
    state = np.arange(len(problem.graph.vertices)) % 3
    space = Space(problem, 2)
    mixes = Selection(space, boundaries(space, state)).best(12, 4, np.inf)
    assert 1 <= len(mixes) <= 4
    assert [mix.energy_j for mix in mixes] == sorted(mix.energy_j for mix in mixes)
    for mix in mixes:
        assert max(len(cut_positions(mix.ties.group[member])) for member in space.members) <= 2


def test_nothing_is_solved_once_time_is_up():
    space = Space(five(0.2), 2)
    assert len(Selection(space, {0: (1, 2, 3, 4)}).best(20, 9, -np.inf)) == 1


def test_a_rounded_mix_keeps_the_deadline():
    problem = five(0.3)  # 1.5 s to spend: one whole operation, the fourth
    space, mix = Space(problem, 2), mix_of(five(0.3), [0, 0, 1, 1, 0])
    assert isinstance(mix, Mixed)
    plan = rounded(space, mix, Polish(space, 5.0))
    assert plan is not None
    assert plan.tolist() == [0, 0, 0, 1, 0]
