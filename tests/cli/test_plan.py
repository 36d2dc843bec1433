import json
from pathlib import Path

import pytest

from megatron_energy.cli.plan import POLICIES
from megatron_energy.emulation.catalog import load
from megatron_energy.planning import policies
from megatron_energy.planning.plan_file import load_plan
from megatron_energy.profiles.files import load_profile
from tests.cli.offline import TWO_CLOCKS, TWO_STAGES, Row, Shell, write_profile

PROMISED_KEYS = {
    "iteration_s", "energy_j", "baseline_iteration_s", "baseline_energy_j", "saved_percent", "slowdown_percent", "bound_saved_percent",
    "switches_per_gpu_mean", "switches_per_gpu_max", "solve_s",
}  # fmt: skip


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.fixture
def two_stages(tmp_path: Path) -> list[object]:
    """The plan command for 2 stages and 2 microbatches."""
    profile = write_profile(tmp_path / "profile.csv", TWO_STAGES, blocking_w=100.0)
    return ["plan", "--profile", profile, "--pipeline", 2, "--microbatches", 2]


def test_json_has_what_was_promised(two_stages: list[object], shell: Shell) -> None:
    assert set(shell.json(*two_stages)) >= PROMISED_KEYS


def test_one_operation_each_has_nothing_to_spare(tmp_path: Path, shell: Shell) -> None:
    profile = write_profile(tmp_path / "profile.csv", [(0, *point) for point in TWO_CLOCKS])
    found = shell.json("plan", "--profile", profile, "--pipeline", 1, "--microbatches", 1, "--blocking-power", 100)
    assert found["baseline_iteration_s"] == found["iteration_s"] == pytest.approx(3.0)
    assert found["baseline_energy_j"] == found["energy_j"] == pytest.approx(900.0)  # it never waits
    assert found["saved_percent"] == pytest.approx(0.0, abs=1e-9)
    assert found["bound_saved_percent"] == pytest.approx(0.0, abs=1e-6)
    assert (found["slowdown_percent"], found["switches_per_gpu_max"], found["gpus"]) == (0.0, 0, 1)


def test_two_stages_by_hand(two_stages: list[object], shell: Shell, tmp_path: Path) -> None:
    found = shell.json(*two_stages, "--out", tmp_path / "plan.json")
    # 4 forwards and 4 backwards, and 2 x 9 s - 12 s of waiting at 100 W.
    assert found["baseline_iteration_s"] == pytest.approx(9.0)
    assert found["baseline_energy_j"] == pytest.approx(4 * 300 + 4 * 600 + 6 * 100)
    # Stage 0 runs F1 and B0 at 1000 MHz: 60 J and 120 J less for them, and 0.5 s and 1 s less of waiting.
    assert found["iteration_s"] == pytest.approx(9.0)
    assert found["energy_j"] == pytest.approx(4200 - 60 - 120 - 150)
    assert found["saved_percent"] == pytest.approx(100 * 330 / 4200)
    assert found["bound_saved_percent"] == pytest.approx(100 * 330 / 4200)
    assert (found["slowdown_percent"], found["switches_per_gpu_mean"], found["switches_per_gpu_max"]) == (0.0, 1.0, 2)
    stage0, stage1 = load_plan(tmp_path / "plan.json").units
    assert [(s.kind, s.microbatch, s.clock_mhz) for s in stage0.segments] == [("forward", 1, 1000), ("backward", 1, 1400)]
    assert [s.clock_mhz for s in stage1.segments] == [1400]


def test_a_budget_of_one_switch_is_none(two_stages: list[object], shell: Shell) -> None:
    for budget in (0, 1):  # a single change of clock within an iteration would have to be undone in the next
        assert shell.json(*two_stages, "--max-switches", budget)["saved_percent"] == pytest.approx(0.0, abs=1e-9)
    assert shell.json(*two_stages, "--max-switches", 2)["saved_percent"] > 7


ALL_SLOW_J = 4 * 240 + 4 * 480  # takes 13.5 s, of which each stage works 9 s


@pytest.mark.parametrize(
    ("options", "deadline_s", "baseline_j", "plan_j"),
    [
        (["--slowdown", 0.5], 13.5, 4200, ALL_SLOW_J + 9 * 100),
        # The straggler ends at 13.5 s, and so does this replica; energies are counted until then.
        (["--straggler", 1.5], 13.5, 3600 + (2 * 13.5 - 12) * 100, ALL_SLOW_J + 9 * 100),
        # It ends at 18 s: nothing is slower than 13.5 s here, so all wait for it.
        (["--straggler", 2], 18.0, 3600 + (2 * 18 - 12) * 100, ALL_SLOW_J + (2 * 18 - 18) * 100),
        (["--straggler", 1.25, "--slowdown", 0.2], 13.5, 3600 + (2 * 11.25 - 12) * 100, ALL_SLOW_J + 9 * 100),
    ],
)
def test_time_to_spare_by_hand(
    two_stages: list[object], options: list[object], deadline_s: float, baseline_j: float, plan_j: float, shell: Shell
) -> None:
    found = shell.json(*two_stages, *options)
    assert found["deadline_s"] == pytest.approx(deadline_s)
    assert found["baseline_iteration_s"] == pytest.approx(9.0)
    assert found["baseline_energy_j"] == pytest.approx(baseline_j)
    assert found["bound_saved_percent"] == pytest.approx(100 * (1 - plan_j / baseline_j))
    assert found["energy_j"] == pytest.approx(plan_j)
    assert found["iteration_s"] == pytest.approx(13.5)


def test_slowdown_is_against_the_end_of_the_slowest_replica(two_stages: list[object], shell: Shell) -> None:
    assert shell.json(*two_stages, "--slowdown", 0.5)["slowdown_percent"] == pytest.approx(50.0)
    assert shell.json(*two_stages, "--straggler", 1.5)["slowdown_percent"] == 0.0
    assert shell.json(*two_stages, "--straggler", 1.25, "--slowdown", 0.2)["slowdown_percent"] == pytest.approx(20.0)


@pytest.mark.parametrize("pipeline", [["--microbatches", 2], ["--microbatches", 6], ["--microbatches", 4, "--chunks", 2]])
def test_permitted_slowdown_never_costs_energy(pipeline: list[object], tmp_path: Path, shell: Shell) -> None:
    profile = write_profile(tmp_path / "profile.csv", TWO_STAGES, blocking_w=100.0)
    command = ["plan", "--profile", profile, "--pipeline", 2, *pipeline]
    energies_j = [shell.json(*command, "--slowdown", slowdown)["energy_j"] for slowdown in (0.0, 0.05, 0.2)]
    assert energies_j[0] >= energies_j[1] - 1e-6
    assert energies_j[1] >= energies_j[2] - 1e-6


def test_policies_without_segments_by_hand(two_stages: list[object], shell: Shell) -> None:
    assert shell.json(*two_stages, "--policy", "maximum", "--slowdown", 0.5)["energy_j"] == pytest.approx(4200)
    assert shell.json(*two_stages, "--policy", "uniform")["energy_j"] == pytest.approx(4200)  # any lower clock for all is slower
    assert shell.json(*two_stages, "--policy", "uniform", "--slowdown", 0.5)["energy_j"] == pytest.approx(ALL_SLOW_J + 9 * 100)
    assert shell.json(*two_stages, "--policy", "stages")["switches_per_gpu_max"] == 0
    assert shell.json(*two_stages, "--policy", "operations")["energy_j"] == pytest.approx(4200 - 330)


def test_every_policy_of_the_planner_is_offered() -> None:
    assert sorted(POLICIES) == sorted((*policies.POLICIES, *policies.PLAIN_POLICIES))


def test_tensor_and_data_parallel_gpus_are_counted(two_stages: list[object], shell: Shell) -> None:
    one, six = shell.json(*two_stages), shell.json(*two_stages, "--tensor", 2, "--data", 3)
    assert (one["gpus"], six["gpus"]) == (2, 12)
    for key in ("energy_j", "baseline_energy_j"):
        assert six[key] == pytest.approx(6 * one[key])
    for key in ("iteration_s", "saved_percent", "bound_saved_percent"):
        assert six[key] == pytest.approx(one[key])


def test_profile_scale_multiplies_times_and_energies(two_stages: list[object], shell: Shell) -> None:
    one, ten = shell.json(*two_stages, "--blocking-power", 100), shell.json(*two_stages, "--blocking-power", 100, "--profile-scale", 10)
    for key in ("energy_j", "baseline_energy_j", "iteration_s", "baseline_iteration_s", "deadline_s"):
        assert ten[key] == pytest.approx(10 * one[key])
    for key in ("saved_percent", "bound_saved_percent", "slowdown_percent"):
        assert ten[key] == pytest.approx(one[key])


def test_stage_values_are_split_over_chunks(two_stages: list[object], shell: Shell) -> None:
    found = shell.json(*two_stages, "--chunks", 2)
    assert found["p2p"] == "overlap"
    waiting_s = 2 * found["baseline_iteration_s"] - 12
    assert found["baseline_energy_j"] - 100 * waiting_s == pytest.approx(3600)  # the work stays what it was
    assert found["baseline_iteration_s"] < 9.0  # half as long to fill and drain


def test_blocking_power_comes_from_options_catalog_or_profile(tmp_path: Path, shell: Shell) -> None:
    bare = write_profile(tmp_path / "bare.csv", TWO_STAGES)
    told = write_profile(tmp_path / "told.csv", TWO_STAGES, blocking_w=60.0)
    job = ["--pipeline", 2, "--microbatches", 2]
    work_j, waiting_s = 3600, 6
    assert shell.json("plan", "--profile", told, *job)["baseline_energy_j"] == pytest.approx(work_j + waiting_s * 60)
    assert shell.json("plan", "--profile", told, *job, "--blocking-power", 10)["baseline_energy_j"] == pytest.approx(
        work_j + waiting_s * 10
    )
    gpu = load("a100-sxm4-80gb")
    found = shell.json("plan", "--profile", bare, *job, "--gpu", gpu.key)
    assert found["baseline_energy_j"] == pytest.approx(work_j + waiting_s * gpu.blocking_power_w)


def test_clocks_between_the_measured_ones(tmp_path: Path, shell: Shell) -> None:
    # Twice as slow at 1000 MHz: too slow for stage 0's B0, which has 1 s to spare. At 1200 MHz it takes 2 s + 2 s x 5/12 (linear in
    # 1/f) and 225 W (halfway): 637.5 J and 0.833 s less of waiting, instead of 600 J.
    points = (("forward", 1400, 1.0, 300.0), ("forward", 1000, 2.0, 300.0), ("backward", 1400, 2.0, 600.0), ("backward", 1000, 4.0, 600.0))
    rows: list[Row] = [(stage, *point) for stage in (0, 1) for point in points]
    profile = write_profile(tmp_path / "profile.csv", rows, blocking_w=100.0)
    command = ["plan", "--profile", profile, "--pipeline", 2, "--microbatches", 2]
    measured, finer = shell.json(*command), shell.json(*command, "--clock-step", 200)
    assert measured["energy_j"] == pytest.approx(4200 - 100)
    assert finer["energy_j"] == pytest.approx(4200 - 100 + 37.5 - 100 * 5 / 6)
    assert (measured["interpolated_clocks_mhz"], finer["interpolated_clocks_mhz"]) == ([], [1200])
    assert "interpolated between measured clocks: 1200 MHz" in shell.text(*command, "--clock-step", 200)


def test_zeus_files_load_as_they_are(data_dir: Path, shell: Shell) -> None:
    files = sorted((data_dir / "perseus_sosp24" / "stage_profile").glob("*.csv"))
    assert files
    for path in files:
        stages = 1 + max(stage for stage, _, _ in load_profile(path).curves)
        job = ["--pipeline", stages, "--microbatches", 2]
        found = shell.json("plan", "--profile", path, "--profile-scale", 10, *job, "--gpu", "a100-sxm4-80gb")
        assert 0 < found["saved_percent"] <= found["bound_saved_percent"] + 1e-9
        assert found["slowdown_percent"] <= 0


def test_fixed_steps_lengthen_the_iteration(tmp_path: Path, shell: Shell) -> None:
    rows = [*TWO_STAGES, *((stage, step, 0, 0.5, 40.0) for stage in (0, 1) for step in ("grad-sync", "optimizer"))]
    profile = write_profile(tmp_path / "profile.csv", rows, blocking_w=100.0)
    found = shell.json("plan", "--profile", profile, "--pipeline", 2, "--microbatches", 2, "--policy", "maximum")
    assert found["baseline_iteration_s"] == pytest.approx(10.0)
    assert found["baseline_energy_j"] == pytest.approx(3600 + 4 * 40 + (2 * 10 - 12 - 2) * 100)


def test_the_plan_file_says_where_it_comes_from(two_stages: list[object], shell: Shell, tmp_path: Path) -> None:
    shell.json(*two_stages, "--tensor", 2, "--data", 3, "--lead", 0.25, "--out", tmp_path / "new" / "plan.json")
    plan = load_plan(tmp_path / "new" / "plan.json")
    assert plan.layout == {"tensor": 2, "context": 1, "expert": 1, "data": 3, "pipeline": 2}
    assert (plan.lead_s, plan.slowdown, plan.straggler) == (0.25, 0.0, 1.0)
    assert (plan.provenance["source"], plan.provenance["blocking_power_w"]) == ("profile.csv", 100.0)
    assert json.loads((tmp_path / "new" / "plan.json").read_text())["version"] == 1
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["plan.json"]
