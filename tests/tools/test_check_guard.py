"""The guard's statistics in a small form; tools/check_guard.py has thousands of seeds."""

import numpy as np
import pytest

from megatron_energy.session.guard import ALLOWANCE, CLIP, THRESHOLD
from tests.tools.loading import load_tool

check_guard = load_tool("check_guard")


@pytest.mark.parametrize(("noise", "baseline"), [(0.02, 64), (0.02, 3), (0.002, 3), (0.0, 3)])
def test_no_plan_is_given_up_for_noise_and_long_iterations(noise: float, baseline: int) -> None:
    runs = [check_guard.simulate(seed, noise, baseline, 2_500, until_verdict=False) for seed in range(4)]
    assert not any(run.verdicts for run in runs)
    assert sum(len(run.alarms) for run in runs) <= (8 if noise == 0.02 else 1)


@pytest.mark.parametrize(("noise", "baseline", "within"), [(0.02, 64, 20), (0.02, 16, 20), (0.005, 3, 6), (0.002, 3, 6), (0.0, 3, 5)])
def test_a_slowdown_of_3_percent_is_found(noise: float, baseline: int, within: int) -> None:
    delays = []
    for seed in range(20):
        run = check_guard.simulate(seed, noise, baseline, 300, lambda planned: 1.03 if planned >= 150 else 1.0)
        delays.append(next(alarm - 150 for alarm in run.alarms if alarm > 150))
        assert run.verdicts
    assert max(delays) <= within


def test_a_job_that_becomes_slower_as_a_whole_is_noticed_and_keeps_its_plan() -> None:
    runs = [check_guard.simulate(seed, 0.005, 16, 300, job_factor=lambda planned: 1.03 if planned >= 100 else 1.0) for seed in range(10)]
    assert all(run.alarms for run in runs)
    assert not any(run.verdicts for run in runs)


def test_the_markov_chain_agrees_with_a_simulation_of_the_sum() -> None:
    """Page's sum by the thousand, with mean and deviation known: an independent way to the same run length."""
    rng = np.random.default_rng(0)
    total, lengths = np.zeros(4_000), np.zeros(4_000)
    running = np.ones(4_000, dtype=bool)
    for _ in range(200):
        value = np.where(rng.random(4_000) < check_guard.LONG_SHARE, 50.0, rng.standard_normal(4_000) + 1.5)
        total = np.maximum(0.0, total + np.clip(value - ALLOWANCE, -CLIP, CLIP))
        lengths += running
        running &= total <= THRESHOLD
    assert not running.any()
    assert lengths.mean() == pytest.approx(check_guard.run_length(1.5), rel=0.02)


def test_a_longer_wait_between_false_alarms_than_until_a_true_one() -> None:
    assert check_guard.run_length(0.0) > 7_500
    assert check_guard.run_length(1.5) < 12
