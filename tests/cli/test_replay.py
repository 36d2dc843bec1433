import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from megatron_energy.cli.main import main
from tests.cli.offline import TWO_STAGES, Shell, write_profile

FIGURES = ("iteration_s", "energy_j", "baseline_iteration_s", "baseline_energy_j", "deadline_s", "saved_percent", "slowdown_percent")


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return write_profile(tmp_path / "profile.csv", TWO_STAGES, blocking_w=100.0)


def four_stages(path: Path, steps: bool = False) -> Path:
    """A profile of 4 stages, the last one slower, at 5 clocks; with ``steps`` grad sync, optimizer and transfers too."""
    rows = []
    for stage in range(4):
        for instruction, time_s, power_w in (("forward", 0.1, 320.0), ("backward", 0.2, 340.0)):
            for clock_mhz in (1410, 1290, 1170, 1050, 930):
                stretched_s = time_s * (1.3 if stage == 3 else 1.0) * (0.3 + 0.7 * 1410 / clock_mhz)
                rows.append((stage, instruction, clock_mhz, stretched_s, stretched_s * (90 + power_w * (clock_mhz / 1410) ** 2.5)))
        if steps:
            rows += [(stage, "grad-sync", 0, 0.05, 6.0), (stage, "optimizer", 0, 0.02, 3.0), (stage, "p2p", 0, 0.004, 0.0)]
    return write_profile(path, rows, blocking_w=85.0)


@pytest.mark.parametrize(
    "options",
    [
        ["--microbatches", 4],
        ["--microbatches", 4, "--chunks", 2, "--p2p", "overlap"],
        ["--microbatches", 4, "--chunks", 2, "--p2p", "overlap-wait", "--warmup-flush"],
        ["--microbatches", 5, "--chunks", 2, "--group-size", 5, "--p2p", "batched"],
        ["--microbatches", 4, "--slowdown", 0.03, "--straggler", 1.1],
        ["--microbatches", 4, "--tensor", 2, "--data", 3],
        ["--microbatches", 4, "--clock-step", 30],
        ["--microbatches", 4, "--lead", 0.08],
        ["--microbatches", 4, "--blocking-power", 70],
    ],
)
def test_a_fresh_plan_replays_to_its_own_figures(options: list[object], tmp_path: Path, shell: Shell) -> None:
    profile = four_stages(tmp_path / "profile.csv", steps=True)
    planned = shell.json("plan", "--profile", profile, "--pipeline", 4, *options, "--out", tmp_path / "plan.json")
    power = options[-2:] if "--blocking-power" in options else []
    replayed = shell.json("replay", "--profile", profile, "--plan", tmp_path / "plan.json", *power)
    for key in FIGURES:
        assert replayed[key] == pytest.approx(planned[key], rel=1e-9, abs=1e-9), key
    assert replayed["switches_per_gpu_max"] == planned["switches_per_gpu_max"]
    assert replayed["interpolated_clocks_mhz"] == planned["interpolated_clocks_mhz"]
    assert replayed["gpus"] == planned["gpus"]


def test_the_bound_is_not_known_to_a_replay(profile: Path, tmp_path: Path, shell: Shell) -> None:
    shell.json("plan", "--profile", profile, "--pipeline", 2, "--microbatches", 2, "--out", tmp_path / "plan.json")
    assert shell.json("replay", "--profile", profile, "--plan", tmp_path / "plan.json")["bound_saved_percent"] is None
    assert "bound" not in shell.text("replay", "--profile", profile, "--plan", tmp_path / "plan.json")


def test_blocking_power_is_remembered(tmp_path: Path, shell: Shell) -> None:
    bare = write_profile(tmp_path / "bare.csv", TWO_STAGES)
    shell.json("plan", "--profile", bare, "--pipeline", 2, "--microbatches", 2, "--blocking-power", 50, "--out", tmp_path / "plan.json")
    command = ["replay", "--profile", bare, "--plan", tmp_path / "plan.json"]
    assert shell.json(*command)["baseline_energy_j"] == pytest.approx(3600 + 6 * 50)
    assert shell.json(*command, "--blocking-power", 10)["baseline_energy_j"] == pytest.approx(3600 + 6 * 10)


def test_a_plan_for_free_sends_is_late_where_sends_block(tmp_path: Path, shell: Shell) -> None:
    profile, plan = four_stages(tmp_path / "profile.csv"), tmp_path / "plan.json"
    job = ["--pipeline", 4, "--chunks", 2, "--microbatches", 4]
    assert shell.json("plan", "--profile", profile, *job, "--p2p", "ideal", "--out", plan)["slowdown_percent"] <= 0
    batched = shell.json("replay", "--profile", profile, "--plan", plan, "--p2p", "batched")
    assert (batched["p2p"], batched["policy"]) == ("batched", "segments")
    assert batched["slowdown_percent"] > 1
    assert "p2p batched" in shell.text("replay", "--profile", profile, "--plan", plan, "--p2p", "batched")


def test_a_mode_without_warm_up_flush_drops_it(tmp_path: Path, shell: Shell) -> None:
    profile, plan = four_stages(tmp_path / "profile.csv"), tmp_path / "plan.json"
    job = ["--pipeline", 4, "--chunks", 2, "--microbatches", 4, "--warmup-flush", "--policy", "maximum"]
    shell.json("plan", "--profile", profile, *job, "--out", plan)
    assert json.loads(plan.read_text())["schedule"]["warmup_flush"] is True
    assert shell.json("replay", "--profile", profile, "--plan", plan, "--p2p", "batched")["p2p"] == "batched"


def hand_made(segments: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """A plan file for 2 stages and 2 microbatches."""
    expected = dict.fromkeys((*FIGURES,), 0.0)
    return {
        "schema": "megatron-energy/plan", "version": 1,
        "layout": {"tensor": 1, "context": 1, "expert": 1, "data": 1, "pipeline": 2},
        "schedule": {"stages": 2, "microbatches": 2, "p2p": "ideal"},
        "policy": "segments", "max_switches": 8, "lead_s": 0.0, "expected": expected,
        "units": [{"stage": stage, "segments": found} for stage, found in enumerate(segments)],
    }  # fmt: skip


def segment(kind: str, microbatch: int, clock_mhz: int) -> dict[str, Any]:
    return {"kind": kind, "chunk": 0, "microbatch": microbatch, "clock_mhz": clock_mhz}


WITH_STEPS = [*TWO_STAGES, *((stage, "optimizer", 0, 0.5, 40.0) for stage in (0, 1))]


def write_plan(path: Path, body: object) -> Path:
    path.write_text(json.dumps(body), encoding="utf-8")
    return path


def test_a_hand_made_plan_by_hand(profile: Path, tmp_path: Path, shell: Shell) -> None:
    # Stage 1 at 1000 MHz throughout: F0 1-2.5, B0 -5.5, F1 -7, B1 -10; stage 0 ends with B1 10-12, and B0 at 1000 MHz 5.5-8.5.
    stage0, stage1 = [segment("backward", 0, 1000), segment("backward", 1, 1400)], [segment("forward", 0, 1000)]
    found = shell.json("replay", "--profile", profile, "--plan", write_plan(tmp_path / "plan.json", hand_made([stage0, stage1])))
    assert found["iteration_s"] == pytest.approx(12.0)
    work_j = (300 + 300 + 480 + 600) + 2 * (240 + 480)
    assert found["energy_j"] == pytest.approx(work_j + 100 * (2 * 12 - (1 + 1 + 3 + 2) - 9))
    assert found["baseline_energy_j"] == pytest.approx(4200)
    assert found["slowdown_percent"] == pytest.approx(100 * 3 / 9)
    assert (found["switches_per_gpu_mean"], found["switches_per_gpu_max"]) == (1.0, 2)


def test_clocks_between_measured_ones_are_interpolated_and_told(profile: Path, tmp_path: Path, shell: Shell) -> None:
    body = hand_made([[segment("forward", 0, 1200)], [segment("forward", 0, 1200)]])
    command = ["replay", "--profile", profile, "--plan", write_plan(tmp_path / "plan.json", body)]
    found = shell.json(*command)
    assert found["interpolated_clocks_mhz"] == [1200]
    assert found["iteration_s"] == pytest.approx(9 * (1 + 0.5 * 5 / 12))  # linear in 1/f: 5/12 of the way from 1400 to 1000 MHz
    assert found["baseline_iteration_s"] == pytest.approx(9.0)
    assert "interpolated between measured clocks: 1200 MHz" in shell.text(*command)


def test_clocks_outside_of_the_measured_ones(profile: Path, tmp_path: Path, shell: Shell) -> None:
    body = hand_made([[segment("forward", 0, 1400)], [segment("forward", 0, 900)]])
    path = write_plan(tmp_path / "plan.json", body)
    assert shell.complaint("replay", "--profile", profile, "--plan", path) == (
        f"{path} uses 900 MHz, but {profile} has measured 1000 to 1400 MHz: replay with the profile that the plan was made from"
    )


def test_a_segment_at_an_operation_that_is_not_there(profile: Path, tmp_path: Path, shell: Shell) -> None:
    path = write_plan(tmp_path / "plan.json", hand_made([[segment("forward", 7, 1400)], [segment("forward", 0, 1400)]]))
    assert shell.complaint("replay", "--profile", profile, "--plan", path) == (
        f"{path} is damaged (units[0].segments[0]: its schedule has no forward 7 of chunk 0): make the plan again"
    )


def test_a_plan_that_tells_ranks_apart(profile: Path, tmp_path: Path, shell: Shell) -> None:
    body = hand_made([[segment("forward", 0, 1400)]] * 2)
    for rank, unit in enumerate(body["units"]):
        unit["ranks"] = str(rank)
    path = write_plan(tmp_path / "plan.json", body)
    found = shell.json("replay", "--profile", profile, "--plan", path)
    assert found["energy_j"] == found["baseline_energy_j"] == pytest.approx(4200)  # as without ranks: one GPU per stage


def test_requests_are_followed(tmp_path: Path, shell: Shell) -> None:
    profile, path = four_stages(tmp_path / "profile.csv", steps=True), tmp_path / "plan.json"
    made = ["--pipeline", 4, "--microbatches", 4, "--lead", 0.08, "--out", path]
    shell.json("plan", "--profile", profile, *made)
    command = ["replay", "--profile", profile, "--plan", path]
    good = shell.json(*command)
    assert good["requests"] > 0 and (good["late_raises"], good["latest_raise_s"]) == (0, 0.0)
    assert f"requests: {good['requests']} bring the segments about, raises in time (asked for 0.08 s early)" in shell.text(*command)
    body = json.loads(path.read_text())
    late = next(r for u in body["units"] for r in u["requests"] if r["delay_s"] > 0)
    late["delay_s"] += 0.05
    write_plan(path, body)
    found = shell.json(*command)
    assert (found["late_raises"], found["latest_raise_s"]) == (1, pytest.approx(0.05))
    assert found["energy_j"] == good["energy_j"]
    assert "raises would be in force late, by up to 0.0500 s" in shell.text(*command)


def test_requests_at_steps_that_the_profile_has_not(profile: Path, tmp_path: Path, shell: Shell) -> None:
    body = hand_made([[segment("forward", 0, 1400), segment("backward", 1, 1000)], [segment("forward", 0, 1400)]])
    body["units"][0]["requests"] = [
        {"kind": "optimizer", "chunk": -1, "microbatch": -1, "edge": "end", "clock_mhz": 1400},
        {"kind": "backward", "chunk": 0, "microbatch": 1, "edge": "begin", "clock_mhz": 1000},
    ]
    path = write_plan(tmp_path / "plan.json", body)
    assert shell.complaint("replay", "--profile", profile, "--plan", path) == (
        f"{path} has requests at optimizer, which the profile has not: replay with the profile it was made from"
    )
    assert shell.json("replay", "--profile", write_profile(tmp_path / "p.csv", WITH_STEPS, 100.0), "--plan", path)["late_raises"] == 0


def test_requests_that_a_step_of_the_profile_comes_after(profile: Path, tmp_path: Path, shell: Shell) -> None:
    body = hand_made([[segment("forward", 0, 1400), segment("backward", 1, 1000)], [segment("forward", 0, 1400)]])
    body["units"][0]["requests"] = [
        {"kind": "backward", "chunk": 0, "microbatch": 1, "edge": "begin", "clock_mhz": 1000},
        {"kind": "backward", "chunk": 0, "microbatch": 1, "edge": "end", "clock_mhz": 1400},  # for the next iteration's first forward
    ]
    path = write_plan(tmp_path / "plan.json", body)
    assert shell.json("replay", "--profile", profile, "--plan", path)["late_raises"] == 0
    assert shell.complaint("replay", "--profile", write_profile(tmp_path / "p.csv", WITH_STEPS, 100.0), "--plan", path) == (
        f"{path} has a clock request for optimizer, where none of its segments begins: replay with the profile it was made from"
    )


def test_what_the_file_says_itself_is_shown_where_it_differs(tmp_path: Path, shell: Shell) -> None:
    profile, path = four_stages(tmp_path / "profile.csv"), tmp_path / "plan.json"
    shell.json("plan", "--profile", profile, "--pipeline", 4, "--chunks", 2, "--microbatches", 4, "--p2p", "ideal", "--out", path)
    assert "the file itself expects" not in shell.text("replay", "--profile", profile, "--plan", path)
    told = json.loads(path.read_text())["expected"]["saved_percent"]
    shown = shell.text("replay", "--profile", profile, "--plan", path, "--p2p", "batched")
    assert f"the file itself expects {told:.2f}% less energy at +0.00% time" in shown


def test_a_profile_of_a_larger_pipeline(tmp_path: Path, shell: Shell) -> None:
    job = ["--pipeline", 2, "--microbatches", 2]
    for command in ("plan", "frontier"):
        line = shell.complaint(command, "--profile", four_stages(tmp_path / "four.csv"), *job)
        assert line == "the profile has 4 stages, this pipeline 2: take a profile of a pipeline of the same size"
    line = shell.complaint("plan", "--profile", tmp_path / "four.csv", *job, "--by-rank")
    assert line == "the profile has 4 stages, this pipeline 2: take a profile of a pipeline of the same size"


def test_files_that_are_no_plan(profile: Path, tmp_path: Path, shell: Shell) -> None:
    path = tmp_path / "plan.json"
    command = ["replay", "--profile", profile, "--plan", path]
    assert shell.complaint(*command) == f"cannot read the plan {path}: No such file or directory"
    assert shell.complaint("replay", "--profile", profile, "--plan", tmp_path) == f"cannot read the plan {tmp_path}: Is a directory"
    path.write_text("stage,instruction\n", encoding="utf-8")
    assert shell.complaint(*command).startswith(f"{path} is no plan: not JSON (")
    write_plan(path, [1, 2])
    assert shell.complaint(*command).startswith(f"{path} is no plan: make one with")
    good = hand_made([[segment("forward", 0, 1400)]] * 2)
    write_plan(path, {**good, "version": 2})
    assert shell.complaint(*command) == f"{path} has plan version 2, this release reads 1: make the plan again"
    write_plan(path, {**good, "schedule": {"stages": 3, "microbatches": 2}})
    assert shell.complaint(*command) == f"{path} is damaged (units: not one list of segments per stage): make the plan again"


def leaves(body: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where every value of a JSON body stands, containers included."""
    inside = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    for key, value in inside:
        yield (*place, key)
        yield from leaves(value, (*place, key))


def replaced(body: Any, place: tuple[Any, ...], value: object) -> tuple[Any, Any]:
    """(copy of the body with the value at this place, what stood there)."""
    changed = copy.deepcopy(body)
    parent = changed
    for key in place[:-1]:
        parent = parent[key]
    old, parent[place[-1]] = parent[place[-1]], value
    return changed, old


@pytest.mark.parametrize("bad", [None, "x", -1])
def test_a_damaged_plan_never_ends_in_a_traceback(bad: object, profile: Path, tmp_path: Path, shell: Shell) -> None:
    path = tmp_path / "plan.json"
    shell.json("plan", "--profile", profile, "--pipeline", 2, "--microbatches", 2, "--lead", 0.1, "--out", path)
    good = json.loads(path.read_text(encoding="utf-8"))
    places = list(leaves(good))
    assert len(places) > 50
    for place in places:
        body, old = replaced(good, place, bad)
        write_plan(path, body)
        status = main(["replay", "--profile", str(profile), "--plan", str(path), "--json"])
        captured = shell.capsys.readouterr()
        assert (status, captured.err.count("\n")) in ((0, 0), (2, 1)), place
        if bad == "x" and isinstance(old, int | float) and place[0] != "provenance":
            assert status == 2, place
            assert str(path) in captured.err
