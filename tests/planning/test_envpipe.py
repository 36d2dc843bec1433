"""EnvPipe: its rules by hand, its published emulation, and that it always ends."""

import csv

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_energy.errors import UserError
from megatron_energy.pipeline.build import build_graph
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.planning.envpipe import (
    EMULATION,
    MEASURED,
    PUBLISHED,
    Settings,
    envpipe,
    least_energy_columns,
    outer_envelope,
    reconfigure,
)
from megatron_energy.planning.envpipe_paths import LongestPath, MeasuredPath
from megatron_energy.planning.problem import Problem
from megatron_energy.profiles.files import load_profile
from megatron_energy.profiles.tables import build_tables
from tests.planning.problems import problem_of, profile_of, random_profile, with_tables


def by_name(problem, clocks):
    """0F1: the forward of microbatch 1 on stage 0."""
    vertices = problem.graph.vertices
    return {f"{v.unit}{v.kind[0].upper()}{v.microbatch}": int(c) for v, c in zip(vertices, clocks, strict=True)}


def names(problem, path):
    return " ".join(f"{v.unit}{v.kind[0].upper()}{v.microbatch}" for v in (problem.graph.vertices[i] for i in path))


def two_stages(time_s, energy_j=(9.0, 6.0, 3.0), microbatches=2, **settings):
    """Every operation takes the same time and energy. Stage 0: F0 F1 B0 B1, stage 1: F0 B0 F1 B1."""
    return with_tables(problem_of(profile_of([1.0, 1.0]), microbatches), time_s, energy_j, blocking_power_w=0.0, **settings)


def test_the_envelope_is_the_last_stage_the_first_forwards_and_the_last_backwards():
    problem = problem_of(profile_of([1.0, 1.0, 1.0]), 3)
    inside = {name for name, kept in by_name(problem, outer_envelope(problem)).items() if not kept}
    assert inside == {f"{stage}{o}" for stage in (0, 1) for o in ("F1", "F2", "B0", "B1")}


def test_what_fits_into_the_bubbles_stays_at_the_least_energy():
    """The last stage works from 1 to 5; the first one's F1 has from 1 to 3 and its B0 from 3 to 5: exactly 2 s each."""
    problem = two_stages([1.0, 1.5, 2.0])
    outcome = reconfigure(problem, Settings(step_mhz=15))
    assert by_name(problem, outcome.clocks) == {**dict.fromkeys(("0F0", "0B1", "1F0", "1B0", "1F1", "1B1"), 0), "0F1": 2, "0B0": 2}
    assert (outcome.steps, outcome.ended) == (0, "envelope")
    assert problem.iteration_s(outcome.clocks) == 6.0


def test_balanced_speeds_up_all_of_the_slowest_on_the_path():
    """At 3 s each, F0 F1 B0 B1 of the first stage is the path (8 s); one step brings both to 2 s."""
    problem = two_stages([1.0, 2.0, 3.0])
    outcome = reconfigure(problem, Settings(step_mhz=15))
    assert (by_name(problem, outcome.clocks)["0F1"], by_name(problem, outcome.clocks)["0B0"]) == (1, 1)
    assert (outcome.steps, outcome.ended) == (1, "envelope")


def test_greedy_speeds_up_the_last_one_first():
    """B0 goes up by three clocks at once; F1, 3 s long, then still holds up the last stage's F1, and goes up as well."""
    problem = two_stages([1.0, 2.0, 3.0])
    outcome = reconfigure(problem, Settings("greedy", step_mhz=15))
    assert (by_name(problem, outcome.clocks)["0F1"], by_name(problem, outcome.clocks)["0B0"]) == (0, 0)
    assert outcome.steps == 2


def test_a_path_outside_of_the_envelope_at_the_highest_clock_ends_it():
    """The first stage is the bottleneck: its own operations are the path, and nothing can be faster."""
    problem = problem_of(profile_of([2.0, 1.0]), 6)
    outcome = reconfigure(problem, Settings(step_mhz=15))
    assert outcome.ended == "maximum"
    assert problem.iteration_s(outcome.clocks) == pytest.approx(problem.baseline_s)


def test_steps_reach_the_next_clock_of_a_coarse_grid():
    """Clocks 200 MHz apart and steps of 30 MHz: each step is one clock, none is lost."""
    problem = problem_of(profile_of([2.0, 1.0]), 6)
    slow = int(least_energy_columns(problem, "iteration")[1])
    outcome = reconfigure(problem, PUBLISHED)
    assert slow > 0
    assert outcome.steps >= slow


def test_steps_take_the_lowest_clock_that_is_high_enough():
    """Clocks are 15 MHz apart: 30 MHz are two columns, 16 MHz as well."""
    for step_mhz in (30, 16):
        problem = two_stages([1.0, 2.0, 3.0])
        outcome = reconfigure(problem, Settings(step_mhz=step_mhz))
        assert (by_name(problem, outcome.clocks)["0F1"], outcome.steps) == (0, 1)


def test_least_energy_of_an_iteration():
    """Two stages, one microbatch, 10 W while waiting; the last stage stays at the highest clock and takes 2 s.

    The first stage spends 2 x 5 J + 2 s x 10 W = 30 J at the high clock, 2 x 4 J + 2 s x 10 W = 28 J at the low one.
    """
    problem = with_tables(problem_of(profile_of([1.0, 1.0]), 1), [1.0, 2.0], [5.0, 4.0], blocking_power_w=10.0)
    assert least_energy_columns(problem, "operation").tolist() == [1, 1, 1, 1]
    assert least_energy_columns(problem, "iteration")[:2].tolist() == [1, 1]
    # Forwards cost 5 J or 9 J, backwards 5 J or 3 J: 10 J or 12 J at one clock for both.
    forward = np.array([v.kind == "forward" for v in problem.graph.vertices])[:, np.newaxis]
    mixed = with_tables(problem, [1.0, 2.0], np.where(forward, [5.0, 9.0], [5.0, 3.0]), blocking_power_w=10.0)
    assert least_energy_columns(mixed, "operation")[:2].tolist() == [0, 1]
    assert least_energy_columns(mixed, "iteration")[:2].tolist() == [0, 0]


def test_least_energy_of_an_iteration_counts_waiting():
    """Three stages, one microbatch. Both first stages are slow together, so the first one waits for the second, too.

    10 J + 4 s x 10 W = 50 J at the high clock, 8 J + 6 s x 10 W = 68 J at the low one, although its own operations are cheaper there.
    """
    problem = with_tables(problem_of(profile_of([1.0, 1.0, 1.0]), 1), [1.0, 2.0], [5.0, 4.0], blocking_power_w=10.0)
    assert least_energy_columns(problem, "operation")[0] == 1
    assert least_energy_columns(problem, "iteration")[0] == 0


def test_envpipe_knows_plain_1f1b_only():
    with pytest.raises(UserError, match="plain 1F1B only: plan without chunks"):
        envpipe(problem_of(profile_of([1.0, 1.0]), 4, chunks=2))
    with pytest.raises(UserError, match="at least 1 MHz, not 0"):
        Settings(step_mhz=0)


def test_what_it_does_not_see_stays_at_the_highest_clock():
    profile = profile_of([1.0, 1.0])
    for stage in (0, 1):
        profile.curves[stage, -1, "optimizer"] = profile.curves[0, -1, "forward"]
    graph = build_graph(Schedule(2, 2, p2p="ideal"), optimizer=True)
    clocks = envpipe(Problem(graph, build_tables(graph, profile), 80.0))
    assert [int(c) for v, c in zip(graph.vertices, clocks, strict=True) if v.kind == "optimizer"] == [0, 0]
    assert clocks.max() > 0


def test_the_longest_path_prefers_the_envelope():
    """All operations take 1 s: 0F0 0F1 1F1 1B1 0B1 (5 s) is shorter than through the whole last stage (6 s)."""
    problem = two_stages([1.0, 2.0, 3.0])
    finder = LongestPath(problem.graph, outer_envelope(problem))
    assert names(problem, finder.find(np.ones(8))) == "0F0 1F0 1B0 1F1 1B1 0B1"
    slow = by_name(problem, range(8))
    duration_s = np.ones(8)
    duration_s[[slow["0F1"], slow["0B0"]]] = 2.0  # the first stage is as long now
    assert names(problem, finder.find(duration_s)) == "0F0 1F0 1B0 1F1 1B1 0B1"
    duration_s[slow["0B0"]] = 2.5  # from 3 s to 5.5 s, and the last stage's B0 ends at 3 s as well
    assert names(problem, finder.find(duration_s)) == "0F0 1F0 1B0 0B0 0B1"


def test_the_estimate_is_right_where_the_last_stage_never_waits():
    problem = two_stages([1.0, 2.0, 3.0], microbatches=4)
    finder = MeasuredPath(problem, 1 / 30)
    assert names(problem, finder.find(np.ones(16))) == "0F0 1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3 0B3"


def test_the_estimate_misses_short_waits():
    """Stage 0 takes 1.03 s per operation, so the last stage waits 0.06 s in later cycles: with the receive's own 1/30 s less than 4/30 s.

    The path seems to lie in the last stage, while the first one is the bottleneck.
    """
    problem = two_stages([1.0, 1.03, 3.0], microbatches=6)
    stage = np.array([v.unit for v in problem.graph.vertices])
    duration_s = np.where(stage == 0, 1.03, 1.0)
    envelope = outer_envelope(problem)
    true = LongestPath(problem.graph, envelope).find(duration_s)
    estimate = MeasuredPath(problem, 1 / 30).find(duration_s)
    assert envelope[estimate].all()
    assert duration_s[estimate].sum() == pytest.approx(2 * 1.03 + 12 * 1.0)
    assert not envelope[true].all()
    assert duration_s[true].sum() == pytest.approx(problem.graph.levels.ends(duration_s[:, np.newaxis]).max())
    assert duration_s[true].sum() > duration_s[estimate].sum() + 0.2


@pytest.mark.parametrize(
    ("model", "saved_percent"),
    [
        ("gpt3-175b", {12: 14.22, 24: 13.54, 48: 13.17, 96: 12.98}),
        ("bloom", {12: 8.43, 24: 4.73, 48: 2.74, 96: 1.70}),
    ],
)
def test_the_published_emulation(data_dir, model, saved_percent):
    """Perseus' emulation of EnvPipe (ml-energy/zeus, branch kronos, lowtime/scripts/envpipe.py): 64 GPUs, so 8 per stage."""
    folder = data_dir / "perseus_sosp24"
    with (folder / "envpipe_result.csv").open() as handle:
        rows = {int(r["num_microbatches"]): r for r in csv.DictReader(handle) if (r["model"], r["device"]) == (model, "a100_sxm")}
    profile = load_profile(folder / "stage_profile" / f"{model}+a100_sxm_bf16.csv", 10)
    for microbatches, saved in saved_percent.items():
        graph = build_graph(Schedule(8, microbatches, p2p="ideal"))
        problem = Problem(graph, build_tables(graph, profile), 83.64, gpus_per_unit=8)
        found = problem.evaluate(envpipe(problem, EMULATION))
        assert found.saved_percent == pytest.approx(saved, abs=0.01)
        assert found.energy_j == pytest.approx(float(rows[microbatches]["energy"]), rel=1e-5)
        assert found.iteration_s == pytest.approx(float(rows[microbatches]["iteration_time"]), rel=2e-5)
        assert found.slowdown_percent == pytest.approx(0, abs=1e-9)


def test_its_own_estimate_slows_down_where_the_last_stage_is_not_the_bottleneck(data_dir):
    """Bloom's last stage is 11% faster than the others. The true path never slows down; EnvPipe's estimate does."""
    profile = load_profile(data_dir / "perseus_sosp24" / "stage_profile" / "bloom+a100_sxm_bf16.csv", 10)
    graph = build_graph(Schedule(8, 24, p2p="ideal"))
    problem = Problem(graph, build_tables(graph, profile), 83.64)
    assert problem.evaluate(envpipe(problem, PUBLISHED)).slowdown_percent == pytest.approx(0, abs=1e-9)
    assert problem.evaluate(envpipe(problem, MEASURED)).slowdown_percent == pytest.approx(7.28, abs=0.01)


@settings(max_examples=60)
@given(st.data())
def test_it_ends_on_any_profile_within_the_proven_number_of_steps(data):
    """tools/check_envpipe.py does the same on 1,000 profiles."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    stages, microbatches, clocks = (data.draw(st.integers(1, most)) for most in (5, 8, 6))
    problem = problem_of(random_profile(rng, stages, clocks, tidy=data.draw(st.booleans())), microbatches)
    how = Settings(
        data.draw(st.sampled_from(["balanced", "greedy"])),
        data.draw(st.sampled_from([1, 15, 30, 1000])),
        data.draw(st.sampled_from(["iteration", "operation"])),
        data.draw(st.sampled_from(["longest", "measured"])),
    )
    outcome = reconfigure(problem, how)
    start = np.where(outer_envelope(problem), 0, least_energy_columns(problem, how.least))
    assert outcome.steps <= (start - outcome.clocks).sum()  # every step lowers this sum
    assert (outcome.clocks <= start).all()
    if how.path == "longest":
        assert problem.meets_deadline(problem.iteration_s(outcome.clocks))
