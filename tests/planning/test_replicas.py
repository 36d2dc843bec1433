"""Which replicas are planned as one."""

import pytest

from megatron_energy.errors import UserError
from megatron_energy.parallel.layout import Layout
from megatron_energy.planning.replicas import bundle, replica_classes
from megatron_energy.profiles.ranks import RankProfiles
from tests.planning.problems import profile_of

PROFILE = profile_of([1.0, 1.1])


def classes(slower=None, **sizes):
    layout = Layout(**sizes)
    return replica_classes(layout, RankProfiles.alike(PROFILE, layout.world_size, slower))


def test_like_replicas_are_one_class():
    (only,) = classes(tensor=2, data=100, pipeline=2)
    assert only.replicas == 100
    assert [unit.members for unit in only.units] == [((0, 2),), ((0, 2),)]
    assert only.ranks[0][0] == tuple(range(200))
    assert only.ranks[1][0] == tuple(range(200, 400))


def test_a_slow_gpu_makes_its_replica_a_class():
    """Ranks: tensor 0-1 of replica 0, 2-3 of replica 1, 4-5 of replica 2, and so on for the second stage."""
    most, slow = classes({3: 1.1}, tensor=2, data=3, pipeline=2)
    assert (most.replicas, slow.replicas) == (2, 1)
    assert [unit.members for unit in slow.units] == [((0, 1), (1, 1)), ((0, 2),)]
    assert slow.ranks == (((2,), (3,)), ((8, 9),))
    assert most.ranks == (((0, 1, 4, 5),), ((6, 7, 10, 11),))


def test_replicas_that_exchange_tokens_are_one_unit():
    (only,) = classes({1: 1.1}, expert=2, data=2, pipeline=2)
    assert only.replicas == 1
    assert [unit.members for unit in only.units] == [((0, 1), (1, 1)), ((0, 2),)]
    assert only.ranks == (((0,), (1,)), ((2, 3),))


def test_members_are_listed_fastest_first():
    (only,) = classes({0: 1.2, 1: 1.1}, tensor=4, pipeline=2)
    assert [profile for profile, _ in only.units[0].members] == [0, 1, 2]
    assert only.ranks[0] == ((2, 3), (1,), (0,))


def bundled(slower, most, in_time=lambda units: True, **sizes):
    layout = Layout(**sizes)
    profiles = RankProfiles.alike(PROFILE, layout.world_size, slower)
    return bundle(replica_classes(layout, profiles), profiles, most, in_time)


def test_classes_that_differ_least_are_joined_and_covered_by_the_slowest():
    """Four replicas, 0, 1.2, 2 and 10% slower in stage 0: 1.2 and 2% go first, as they cost the least; 0 joins them."""
    first, second, third = bundled({1: 1.012, 2: 1.02, 3: 1.1}, 3, data=4, pipeline=2)
    assert sorted((first.ranks, second.ranks, third.ranks)) == [(((0,),), ((4,),)), (((1, 2),), ((5, 6),)), (((3,),), ((7,),))]
    first, second = bundled({1: 1.012, 2: 1.02, 3: 1.1}, 2, data=4, pipeline=2)
    assert first.ranks == (((0, 1, 2),), ((4, 5, 6),))
    assert first.replicas == 3
    assert first.units[0].members == ((2, 1),)  # 1.02
    assert second.units[0].members == ((3, 1),)


def test_slow_at_one_stage_each_would_be_slow_at_both():
    """Such a replica is slower than the job is: classes are not joined where that makes the job later."""
    slow_at_both = {1: 1.1, 2: 1.1}  # replica 1 in stage 0, replica 0 in stage 1
    (only,) = bundled(slow_at_both, 1, data=2, pipeline=2)
    assert [unit.members for unit in only.units] == [((1, 1),), ((1, 1),)]
    assert len(bundled(slow_at_both, 1, lambda units: units[0] != units[1], data=2, pipeline=2)) == 2


def test_a_covered_gpu_follows_the_fastest_kind_that_is_no_faster():
    """Replica 0 has GPUs (1, 1.05), replica 1 (1.02, 1.2). Its own kinds come first; 1 and 1.05 follow 1.02 and 1.2."""
    (only,) = bundled({1: 1.05, 2: 1.02, 3: 1.2}, 1, tensor=2, data=2, pipeline=2)
    assert only.ranks[0] == ((0, 2), (1, 3))


def test_profiles_must_fit_the_layout():
    with pytest.raises(UserError, match="profiles of 4 GPUs do not fit a job of 8 ranks"):
        replica_classes(Layout(tensor=2, data=2, pipeline=2), RankProfiles.alike(PROFILE, 4))
