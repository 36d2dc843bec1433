"""Profiles of single GPUs."""

import numpy as np
import pytest

from megatron_energy.errors import UserError
from megatron_energy.profiles.files import load_profile, load_rank_profiles
from megatron_energy.profiles.profile import Curve, Profile
from megatron_energy.profiles.ranks import RankProfiles, stretched

HEADER = "stage,instruction,frequency,time,energy,rank\n"


def profile_of(forward_s=(1.0, 1.5), energy_j=(100.0, 60.0), stages=2):
    clocks = np.array([1400, 1000])
    curves = {(s, -1, "forward"): Curve(clocks, np.array(forward_s), np.array(energy_j)) for s in range(stages)}
    curves[0, -1, "grad-sync"] = Curve(clocks, np.array([0.2, 0.2]), np.array([20.0, 20.0]))
    return Profile(curves, 80.0)


def forward(profile, stage=0):
    return profile.curves[stage, -1, "forward"]


def test_a_slower_gpu_takes_longer_at_the_same_power_but_communicates_as_fast():
    slow = stretched(profile_of(), 1.1)
    assert forward(slow).time_s == pytest.approx([1.1, 1.65])
    assert forward(slow).energy_j == pytest.approx([110, 66])
    assert slow.curves[0, -1, "grad-sync"].time_s.tolist() == [0.2, 0.2]


def test_slower_ranks_share_a_profile_if_they_are_alike():
    ranks = RankProfiles.alike(profile_of(), 8, {1: 1.1, 5: 1.1, 6: 1.2, 7: 1.0})
    assert ranks.profile_of_rank == (0, 1, 0, 0, 0, 1, 2, 0)
    assert forward(ranks.profile(6)).time_s[0] == pytest.approx(1.2)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_slowness_must_make_sense(factor):
    with pytest.raises(UserError, match="slowness"):
        stretched(profile_of(), factor)


def test_merged_has_the_slowest_time_and_the_mean_energy_of_every_stage():
    ranks = RankProfiles.alike(profile_of(), 8, {1: 1.1}).merged([0] * 4 + [1] * 4)
    assert forward(ranks.profile(0)).time_s == pytest.approx([1.1, 1.65])
    assert forward(ranks.profile(0)).energy_j == pytest.approx([(3 * 100 + 110) / 4, (3 * 60 + 66) / 4])
    assert ranks.profile(3) is ranks.profile(0)
    assert forward(ranks.profile(4), 1).time_s == pytest.approx([1.0, 1.5])


def test_one_profile_per_stage_stays_as_it_is():
    ranks = RankProfiles.alike(profile_of(), 2).merged([0, 1])
    assert forward(ranks.profile(0)).clock_mhz.tolist() == [1400, 1000]
    assert forward(ranks.profile(0)).time_s.tolist() == [1.0, 1.5]


def test_rounding_covers_gpus_within_a_step():
    factors = {0: 1.004, 1: 1.009, 2: 1.011, 3: 1.03, 4: 1.0}
    ranks = RankProfiles.alike(profile_of(stages=1), 5, factors).rounded([0] * 5, 0.01)
    slowest = [float(forward(ranks.profile(rank)).time_s[0]) for rank in range(5)]
    assert slowest == pytest.approx([1.009, 1.009, 1.011, 1.03, 1.009])
    assert ranks.profile_of_rank[0] == ranks.profile_of_rank[1] == ranks.profile_of_rank[4] != ranks.profile_of_rank[2]
    assert all(forward(ranks.profile(rank)).time_s[1] >= 1.5 * factors[rank] - 1e-12 for rank in range(5))


def test_rounding_needs_a_step():
    with pytest.raises(UserError, match="steps above zero"):
        RankProfiles.alike(profile_of(), 2).rounded([0, 1], 0.0)


def written(tmp_path, text):
    path = tmp_path / "profile.csv"
    path.write_text(HEADER + text)
    return path


SHARED = "0,forward,1400,1.0,100,\n0,forward,1000,1.5,60,\n1,forward,1400,1.0,90,\n"


def test_rows_of_a_rank_replace_those_of_all(tmp_path):
    path = written(tmp_path, SHARED + "0,forward,1400,1.1,110,1\n0,forward,1000,1.6,66,1\n")
    ranks = load_rank_profiles(path, [0, 0, 1, 1])
    assert ranks.profile_of_rank == (0, 1, 0, 0)
    assert forward(ranks.profile(0)).time_s.tolist() == [1.0, 1.5]
    assert forward(ranks.profile(1)).time_s.tolist() == [1.1, 1.6]
    assert load_profile(path).curves[0, -1, "forward"].time_s.tolist() == [1.1, 1.6]  # merged: the slowest


def test_ranks_with_equal_rows_share_a_profile(tmp_path):
    path = written(tmp_path, "0,forward,1400,1.0,100,0\n0,forward,1400,1.0,100,1\n0,forward,1400,1.1,100,2\n")
    ranks = load_rank_profiles(path, [0, 0, 0])
    assert ranks.profile_of_rank[0] == ranks.profile_of_rank[1] != ranks.profile_of_rank[2]


def test_scale(tmp_path):
    ranks = load_rank_profiles(written(tmp_path, "0,forward,1400,1.0,100,0\n"), [0], 10)
    assert forward(ranks.profile(0)).time_s.tolist() == [10.0]


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ("0,forward,1400,1.0,100,4\n", "line 5, column rank: 4 is not a rank of this job, which has 4"),
        ("0,forward,1400,1.0,100,3\n", "line 5, column rank: rank 3 is in stage 1 of this job, not 0"),
    ],
)
def test_ranks_that_do_not_fit(tmp_path, rows, complaint):
    with pytest.raises(UserError, match=complaint):
        load_rank_profiles(written(tmp_path, SHARED + rows), [0, 0, 1, 1])


def test_every_rank_needs_rows(tmp_path):
    with pytest.raises(UserError, match="no rows for rank 1: measure it too"):
        load_rank_profiles(written(tmp_path, "0,forward,1400,1.0,100,0\n"), [0, 0])
