"""Joint clock choices of unlike GPUs, against enumeration of every choice."""

import itertools

import numpy as np
import pytest

from megatron_energy.planning.lockstep import Members

BLOCKING_W = 60.0


def random_members(seed, kinds=3, operations=2, clocks=4):
    """Curves that are neither smooth nor monotone."""
    rng = np.random.default_rng(seed)
    slower = np.linspace(1.0, 1.6, clocks) * rng.uniform(0.8, 1.2, (kinds, operations, clocks))
    energy_j = 100 * slower * rng.uniform(0.5, 1.0, (kinds, operations, clocks))
    return Members(slower, energy_j, rng.integers(1, 4, kinds))


def by_hand(members, choice, operation):
    """(seconds, joules of all GPUs) of one operation when every kind of GPU has one clock."""
    times = [members.time_s[kind, operation, clock] for kind, clock in enumerate(choice)]
    energies = [members.energy_j[kind, operation, clock] for kind, clock in enumerate(choice)]
    length = max(times)
    total = sum(n * (e + BLOCKING_W * (length - t)) for n, e, t in zip(members.gpus, energies, times, strict=True))
    return length, total


def every_choice(members):
    kinds, _, clocks = members.time_s.shape
    return itertools.product(range(clocks), repeat=kinds)


@pytest.mark.parametrize("seed", range(12))
def test_no_choice_of_clocks_is_better_than_all_joint_columns(seed):
    """For every choice and operation some column is as fast and costs no more, counted as the planner counts (effective energy)."""
    members = random_members(seed)
    columns = members.joint_columns(BLOCKING_W)
    time_s, mean_j = members.cost(columns, BLOCKING_W)
    effective_j = members.gpus.sum() * (mean_j - BLOCKING_W * time_s)
    for choice in every_choice(members):
        for operation in range(2):
            length_s, total_j = by_hand(members, choice, operation)
            wanted_j = total_j - BLOCKING_W * members.gpus.sum() * length_s
            no_slower = time_s[operation] <= length_s
            assert effective_j[operation, no_slower].min() <= wanted_j + 1e-9


@pytest.mark.parametrize("seed", range(4))
def test_cost_is_slowest_time_and_energy_with_waiting(seed):
    members = random_members(seed)
    columns = members.joint_columns(BLOCKING_W)
    time_s, mean_j = members.cost(columns, BLOCKING_W)
    for index, choice in enumerate(columns.tolist()):
        for operation in range(2):
            length_s, total_j = by_hand(members, choice, operation)
            assert time_s[operation, index] == pytest.approx(length_s)
            assert mean_j[operation, index] * members.gpus.sum() == pytest.approx(total_j)
            clocks = np.repeat(np.array(choice)[:, np.newaxis], 2, axis=1)
            assert members.at(clocks, BLOCKING_W)[0][operation] == pytest.approx(length_s)
            assert members.at(clocks, BLOCKING_W)[1][operation] * members.gpus.sum() == pytest.approx(total_j)


@pytest.mark.parametrize("seed", range(8))
def test_replacements_are_never_slower_nor_dearer_than_one_clock_for_all(seed):
    members = random_members(seed)
    columns = {tuple(c) for c in members.joint_columns(BLOCKING_W).tolist()}
    for clock, choice in enumerate(members.replacements(BLOCKING_W).tolist()):
        assert tuple(choice) in columns
        for operation in range(2):
            length_s, total_j = by_hand(members, choice, operation)
            alike_s, alike_j = by_hand(members, (clock,) * 3, operation)
            effective, alike = (j - BLOCKING_W * members.gpus.sum() * s for j, s in ((total_j, length_s), (alike_j, alike_s)))
            assert length_s <= alike_s
            assert effective <= alike + 1e-9


def test_the_first_column_is_the_gpus_as_found_and_the_rest_slow_down():
    members = random_members(3)
    columns = members.joint_columns(BLOCKING_W)
    time_s, _ = members.cost(columns, BLOCKING_W)
    pace = (time_s / members.time_s[:, :, 0].max(axis=0)[:, np.newaxis]).mean(axis=0)
    assert columns[0].tolist() == [0, 0, 0]
    assert (np.diff(pace[1:]) >= 0).all()


def test_like_gpus_have_a_column_per_clock():
    members = random_members(0, kinds=1)
    assert members.joint_columns(BLOCKING_W).tolist() == [[0], [1], [2], [3]]


def test_a_faster_gpu_takes_the_lowest_clock_that_keeps_up():
    """Time 1/f, power f**2 + 40 W: energy - 20 W x time falls with the clock, so no slower than needed is right for the fast GPU."""
    clocks = np.array([1.0, 0.9, 0.8, 0.7])
    time_s = np.stack([1 / clocks, 1.2 / clocks])[:, np.newaxis]
    members = Members(time_s, time_s * (300 * clocks**2 + 40), np.array([3, 1]))
    columns = members.joint_columns(20.0)
    assert columns[0].tolist() == [0, 0]
    assert columns[1].tolist() == [1, 0]  # 1 / 0.9 = 1.11 s against 1.2 s; 1 / 0.8 = 1.25 s would be late
    assert columns[-1].tolist() == [3, 3]
    assert [2, 0] in columns.tolist()  # 1.25 s: the slow GPU's next clock takes 1.33 s
