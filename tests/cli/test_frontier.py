"""The command ``frontier``, on the two stages of tests/cli/offline.py.

Every half second more lets one forward run at 1000 MHz, for 60 J less and 50 J more of waiting: 20 J per second.
"""

import csv
import json
from pathlib import Path

import pytest

from tests.cli.offline import TWO_CLOCKS, TWO_STAGES, Shell, write_profile

PROMISED_KEYS = {
    "iteration_s", "energy_j", "baseline_iteration_s", "baseline_energy_j", "saved_percent", "slowdown_percent", "bound_saved_percent",
    "switches_per_gpu_mean", "switches_per_gpu_max", "solve_s",
}  # fmt: skip


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.fixture
def two_stages(tmp_path: Path) -> list[object]:
    """The frontier command for 2 stages and 2 microbatches."""
    profile = write_profile(tmp_path / "profile.csv", TWO_STAGES, blocking_w=100.0)
    return ["frontier", "--profile", profile, "--pipeline", 2, "--microbatches", 2]


def test_two_stages_by_hand(two_stages: list[object], shell: Shell) -> None:
    found = shell.json(*two_stages)
    points = found["points"]
    assert [point["iteration_s"] for point in points] == pytest.approx([9 + 0.5 * i for i in range(10)])
    assert [point["energy_j"] for point in points] == pytest.approx([3870 - 10 * i for i in range(10)])
    assert [point["saved_percent"] for point in points] == pytest.approx([100 * (330 + 10 * i) / 4200 for i in range(10)])
    assert [point["slowdown_percent"] for point in points] == pytest.approx([100 * i / 18 for i in range(10)])
    for point in points:
        assert point["bound_energy_j"] == pytest.approx(3870 - 20 * (point["deadline_s"] - 9))
    assert [point["price_w"] for point in points[1:-1]] == pytest.approx([20.0] * 8)
    assert found["between_points_gap_percent"] == pytest.approx(0, abs=1e-6)


def test_json_has_what_was_promised_for_the_point_in_time(two_stages: list[object], shell: Shell) -> None:
    found = shell.json(*two_stages, "--tensor", 2, "--data", 3)
    assert set(found) >= PROMISED_KEYS
    assert (found["gpus"], found["iteration_s"], found["slowdown_percent"]) == (12, pytest.approx(9.0), 0.0)
    assert found["energy_j"] == pytest.approx(6 * 3870)
    assert found["baseline_energy_j"] == pytest.approx(6 * 4200)
    assert found["points"][-1]["energy_j"] == found["points"][-1]["bound_energy_j"] == pytest.approx(6 * 3780)


def test_the_file_has_every_point(two_stages: list[object], shell: Shell, tmp_path: Path) -> None:
    out = tmp_path / "new" / "frontier.csv"
    points = shell.json(*two_stages, "--out", out)["points"]
    with out.open(newline="", encoding="utf-8") as handle:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(handle)]
    assert rows == points  # to the last digit
    assert [path.name for path in out.parent.iterdir()] == ["frontier.csv"]


@pytest.mark.parametrize("options", [[], ["--policy", "segments", "--max-switches", 2, "--points", 6], ["--straggler", 1.25]])
def test_plans_replay_as_the_points_claim(two_stages: list[object], options: list[object], shell: Shell, tmp_path: Path) -> None:
    points = shell.json(*two_stages, *options, "--tensor", 2, "--plans", tmp_path / "plans")["points"]
    files = sorted((tmp_path / "plans").iterdir())
    assert [file.name for file in files] == [f"plan-{i:03d}.json" for i in range(len(points))]
    for file, point in zip(files, points, strict=True):
        replayed = shell.json("replay", "--profile", two_stages[2], "--plan", file)
        for key in ("iteration_s", "energy_j", "saved_percent", "slowdown_percent", "switches_per_gpu_mean", "switches_per_gpu_max"):
            assert replayed[key] == pytest.approx(point[key], rel=1e-9, abs=1e-9), key
        assert json.loads(file.read_text())["expected"]["bound_saved_percent"] == pytest.approx(point["bound_saved_percent"])


def test_with_a_straggler_it_begins_at_its_end(two_stages: list[object], shell: Shell) -> None:
    points = shell.json(*two_stages, "--straggler", 1.25)["points"]
    assert points[0]["deadline_s"] == pytest.approx(11.25)
    # Waiting until 11.25 s costs the fastest plan's GPUs 225 J each: 3870 - 20 J x 2.25 by the bound, 11 s by real clocks.
    assert points[0]["bound_energy_j"] == pytest.approx(3870 - 45)
    assert (points[0]["iteration_s"], points[0]["energy_j"]) == pytest.approx((11.0, 3830 + 2 * 0.25 * 100))
    assert points[0]["slowdown_percent"] == 0.0
    assert points[-1]["slowdown_percent"] == pytest.approx(20.0)  # 13.5 s


def test_the_text_shows_some_of_the_points(two_stages: list[object], shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = shell.text(*two_stages)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert "baseline: 9 s, 4,200.0 J" in text
    rows = [line.split() for line in lines if line.strip()[:1].isdigit() and "%" in line]
    assert rows[0] == ["0", "9.0000", "+0.00%", "3,870.0", "7.86%", "7.86%", "1"]
    assert rows[-1][:4] == ["9", "13.5000", "+50.00%", "3,780.0"]


def test_clocks_between_the_measured_ones_make_more_points(two_stages: list[object], shell: Shell) -> None:
    measured, finer = shell.json(*two_stages, "--points", 30), shell.json(*two_stages, "--points", 30, "--clock-step", 100)
    assert len(measured["points"]) == 10
    assert 15 < len(finer["points"]) <= 30


def test_emulated_figures_say_so(two_stages: list[object], shell: Shell, tmp_path: Path) -> None:
    lines = Path(str(two_stages[2])).read_text().splitlines()
    marked = tmp_path / "emulated.csv"
    marked.write_text("\n".join([lines[0] + ",emulated", *(line + ",True" for line in lines[1:])]) + "\n")
    command = ["frontier", "--profile", marked, *two_stages[3:]]
    assert "All figures are emulated" in shell.text(*command)
    assert shell.json(*command)["emulated"] is True
    assert "emulated" not in shell.text(*two_stages)


def test_what_cannot_be_done_is_one_line(two_stages: list[object], shell: Shell, tmp_path: Path) -> None:
    assert "--points" in shell.complaint(*two_stages, "--points", 1)
    assert "unrecognized arguments: --slowdown" in shell.complaint(*two_stages, "--slowdown", 0.1)
    assert "cannot write the frontier" in shell.complaint(*two_stages, "--out", tmp_path)
    (tmp_path / "file").write_text("")
    line = shell.complaint(*two_stages, "--plans", tmp_path / "file")
    assert line.startswith(f"cannot write the plan {tmp_path / 'file' / 'plan-000.json'}: ") and line.endswith("; choose another --plans")
    lone = write_profile(tmp_path / "lone.csv", [(0, *point) for point in TWO_CLOCKS])
    assert "the profile has no forward of stage 1" in shell.complaint(
        "frontier", "--profile", lone, "--pipeline", 2, "--microbatches", 2, "--blocking-power", 1
    )
