"""Plans with clocks per GPU from the command line, and their replay."""

import json
from pathlib import Path

import pytest

from megatron_energy.planning.plan_file import load_plan
from tests.cli.offline import TWO_STAGES, Shell, write_profile


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.fixture
def job(tmp_path: Path) -> list[object]:
    """2 stages of 2 GPUs; their profile tells no ranks apart."""
    profile = write_profile(tmp_path / "profile.csv", TWO_STAGES, blocking_w=100.0)
    return ["--profile", profile, "--pipeline", 2, "--microbatches", 2, "--tensor", 2]


def test_a_slow_gpu_by_hand(job: list[object], shell: Shell, tmp_path: Path) -> None:
    """Rank 1 takes 60% longer: its fellow, which takes 50% longer at 1000 MHz, stays there throughout. Stage 1 waits a lot.

    At the highest clocks, with stage 0 at 1.6 s and 3.2 s: F0 0-1.6, F1 1.6-3.2; stage 1: F0 1.6-2.6, B0 2.6-4.6, F1 4.6-5.6,
    B1 5.6-7.6; stage 0: B0 4.6-7.8, B1 7.8-11. So 11 s. Two GPUs of stage 1 work for 6 s each, of stage 0 one for 6 s, one for 9.6 s.
    """
    out = tmp_path / "plan.json"
    found = shell.json("plan", *job, "--by-rank", "--slower", "1=1.6", "--out", out)
    plan = load_plan(out)
    assert [u.ranks for u in plan.units] == ["0", "1", "2-3"]
    assert {s.clock_mhz for s in plan.unit(0, 0).segments} == {1000}
    assert found["baseline_iteration_s"] == pytest.approx(11.0)
    assert found["slowdown_percent"] == 0.0
    healthy_j = 2 * 300 + 2 * 600  # of a GPU at work, and 100 W while it waits
    assert found["baseline_energy_j"] == pytest.approx(3 * (healthy_j + 5 * 100) + 1.6 * healthy_j + 1.4 * 100)
    assert found["saved_percent"] <= found["bound_saved_percent"] + 1e-9


def test_replay_knows_the_slow_gpu_where_all_have_the_same_clocks(job: list[object], shell: Shell, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    made = shell.json("plan", *job, "--by-rank", "--slower", "1=1.0512345678", "--policy", "maximum", "--out", out)
    assert not load_plan(out).by_rank
    found = shell.json("replay", "--profile", tmp_path / "profile.csv", "--plan", out)
    assert found["baseline_iteration_s"] == pytest.approx(made["baseline_iteration_s"], rel=1e-12)
    assert found["energy_j"] == pytest.approx(made["energy_j"], rel=1e-12)


def test_a_slow_gpu_that_was_edited(job: list[object], shell: Shell, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    shell.json("plan", *job, "--by-rank", "--slower", "1=1.1", "--policy", "maximum", "--out", out)
    out.write_text(out.read_text(encoding="utf-8").replace('"1=1.1"', '"often"'), encoding="utf-8")
    line = shell.complaint("replay", "--profile", tmp_path / "profile.csv", "--plan", out)
    assert "plan.json: provenance.slower: 'often' is not RANK=FACTOR" in line


def test_a_plan_that_was_edited_beyond_reason(job: list[object], shell: Shell, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    shell.json("plan", *job, "--by-rank", "--slower", "1=1.6", "--out", out)
    body = json.loads(out.read_text(encoding="utf-8"))
    body["layout"]["tensor"] = 10**12
    out.write_text(json.dumps(body), encoding="utf-8")
    line = shell.complaint("replay", "--profile", tmp_path / "profile.csv", "--plan", out)
    assert "units: not one list of segments per rank" in line
    out.write_text("[" * 200_000, encoding="utf-8")
    assert "nested too deeply" in shell.complaint("replay", "--profile", tmp_path / "profile.csv", "--plan", out)


def test_a_graph_knows_no_ranks(shell: Shell) -> None:
    line = shell.complaint("plan", "--profile", "p.csv", "--graph", "g.json", "--slower", "1=1.1")
    assert line.endswith("leave out --by-rank, --slower and --expert")


def test_replay_gives_the_same_figures(job: list[object], shell: Shell, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    made = shell.json("plan", *job, "--data", 2, "--by-rank", "--slower", "1=1.1", "--slower", "3=1.05", "--out", out)
    found = shell.json("replay", "--profile", tmp_path / "profile.csv", "--plan", out)
    assert found["energy_j"] == pytest.approx(made["energy_j"])
    assert found["iteration_s"] == pytest.approx(made["iteration_s"])
    assert found["baseline_energy_j"] == pytest.approx(made["baseline_energy_j"])


def test_the_profile_tells_the_ranks_apart(shell: Shell, tmp_path: Path) -> None:
    profile = tmp_path / "profile.csv"
    rows = [f"{s},{i},{mhz},{time_s},{energy_j}," for s, i, mhz, time_s, energy_j in TWO_STAGES]
    rows += [f"0,{i},{mhz},{1.2 * time_s},{1.2 * energy_j},1" for s, i, mhz, time_s, energy_j in TWO_STAGES if s == 0]
    profile.write_text("\n".join(["stage,instruction,frequency,time,energy,rank", *rows]) + "\n", encoding="utf-8")
    command = ["plan", "--profile", profile, "--pipeline", 2, "--microbatches", 2, "--tensor", 2, "--blocking-power", 100]
    measured = shell.json(*command, "--by-rank", "--out", tmp_path / "plan.json")
    assert [u.ranks for u in load_plan(tmp_path / "plan.json").units] == ["0", "1", "2-3"]
    merged = shell.json(*command)
    assert measured["iteration_s"] == pytest.approx(merged["iteration_s"])
    assert measured["energy_j"] < merged["energy_j"]


def test_clocks_between_the_measured_ones(job: list[object], shell: Shell, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    made = shell.json("plan", *job, "--by-rank", "--slower", "1=1.1", "--clock-step", 100, "--out", out)
    assert set(made["interpolated_clocks_mhz"]) <= {1100, 1200, 1300}
    assert made["interpolated_clocks_mhz"]
    found = shell.json("replay", "--profile", tmp_path / "profile.csv", "--plan", out)
    assert found["energy_j"] == pytest.approx(made["energy_j"])
    assert found["interpolated_clocks_mhz"] == made["interpolated_clocks_mhz"]


def test_the_text_names_the_ranks(job: list[object], shell: Shell) -> None:
    text = shell.text("plan", *job, "--by-rank", "--slower", "1=1.1")
    assert "plan for 4 GPUs" in text
    assert "2-3" in text


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--slower", "1=1.1"], "--slower needs --by-rank: without it all GPUs of a stage are planned alike"),
        (["--expert", "2"], "--expert needs --by-rank: without it all GPUs of a stage are planned alike"),
        (["--by-rank", "--slower", "4=1.1"], "--slower: rank 4 is not one of this job's 4: give --tensor and --data"),
        (
            ["--by-rank", "--policy", "uniform"],
            "policy uniform knows no unlike GPUs: choose one of segments, operations, roles, stages, maximum",
        ),
    ],
)
def test_what_does_not_fit(job: list[object], shell: Shell, options: list[str], complaint: str) -> None:
    assert shell.complaint("plan", *job, *options) == complaint


@pytest.mark.parametrize("text", ["1", "1=", "=1.1", "a=1.1", "-1=1.1", "1=0", "1=nan", "1=1.1=2"])
def test_what_is_no_slow_gpu(job: list[object], shell: Shell, text: str) -> None:
    assert f"argument --slower: '{text}' is not RANK=FACTOR" in shell.complaint("plan", *job, "--by-rank", f"--slower={text}")


def test_a_damaged_rank_is_told(job: list[object], shell: Shell, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    shell.json("plan", *job, "--by-rank", "--slower", "1=1.6", "--out", out)
    body = json.loads(out.read_text(encoding="utf-8"))
    body["units"][1]["ranks"] = "0"
    out.write_text(json.dumps(body), encoding="utf-8")
    complaint = shell.complaint("replay", "--profile", tmp_path / "profile.csv", "--plan", out)
    assert complaint == f"{out} is damaged (units: not one list of segments per rank): make the plan again"
