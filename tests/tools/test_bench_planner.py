"""The benchmark against lowtime: everything but lowtime itself, for which stand-ins answer."""

import json
from pathlib import Path
from types import ModuleType

import pytest

from megatron_energy.profiles.files import load_profile
from tests.cli.offline import TWO_STAGES, write_profile
from tests.tools.loading import load_tool

OPERATIONS = 8  # 2 stages, 2 microbatches


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return load_tool("bench_planner")


@pytest.fixture
def profile(tmp_path: Path) -> str:
    return str(write_profile(tmp_path / "profile.csv", TWO_STAGES))


def stand_in(path: Path, answer: object) -> str:
    """A program in the place of Python that gives this answer whatever it is asked, once it has read the question."""
    path.write_text(f"#!/bin/sh\ncat > {path}.question\ncat <<'END'\n{json.dumps(answer)}\nEND\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def answer(clocks_mhz: list[int], **facts: object) -> dict[str, object]:
    return {"state": "done", "solve_s": 6.0, "points": 3, "claimed_s": 9.0, "peak_mib": 50.0, "clocks_mhz": clocks_mhz, **facts}


def test_stages_in_between_are_repeated(bench: ModuleType, tmp_path: Path) -> None:
    rows = [(stage, "forward", 1400, 1.0 + stage, 100.0) for stage in range(4)]
    profile = load_profile(write_profile(tmp_path / "four.csv", rows))
    times = {count: [bench.stages_of(profile, count).curves[s, -1, "forward"].time_s[0] for s in range(count)] for count in (2, 4, 7)}
    assert times == {2: [1, 4], 4: [1, 2, 3, 4], 7: [1, 2, 3, 2, 3, 2, 4]}


def test_cases(bench: ModuleType) -> None:
    assert bench.case_of("8x32", "overlap") == bench.Case(8, 1, 32, "ideal")
    assert bench.case_of("8x2x16", "batched") == bench.Case(8, 2, 16, "batched")


def test_our_figures(bench: ModuleType, profile: str) -> None:
    found = bench.ours(bench.Input(profile, 1.0, 100.0), bench.Case(2, 1, 2, "ideal"), 20, 8)
    assert found["operations"] == OPERATIONS
    assert found["saved_percent"] == pytest.approx(100 * 330 / 4200)
    assert found["bound_percent"] == pytest.approx(100 * 330 / 4200)
    assert (found["slowdown_percent"], found["points"]) == (0.0, 10)
    assert 0 <= found["bound_s"] <= found["plan_s"]
    assert found["segments_percent"] == pytest.approx(100 * 330 / 4200)


def test_without_switches_nothing_is_searched_for(bench: ModuleType, profile: str) -> None:
    assert "segments_s" not in bench.ours(bench.Input(profile, 1.0, 100.0), bench.Case(2, 1, 2, "ideal"), 0, 0)


@pytest.mark.parametrize(("mhz", "saved_percent", "slowdown_percent"), [(1400, 0.0, 0.0), (1000, 10.0, 50.0)])
def test_their_plan_is_replayed(
    bench: ModuleType, profile: str, tmp_path: Path, mhz: int, saved_percent: float, slowdown_percent: float
) -> None:
    python = stand_in(tmp_path / "python", answer([mhz] * OPERATIONS))
    found = bench.lowtime(python, bench.Input(profile, 1.0, 100.0), bench.Case(2, 1, 2, "ideal"), 5.0)
    assert found["saved_percent"] == pytest.approx(saved_percent)
    assert found["slowdown_percent"] == pytest.approx(slowdown_percent)
    assert found["claimed_percent"] == pytest.approx(0.0)
    asked = json.loads((tmp_path / "python.question").read_text())
    assert sorted(map(sorted, asked["kinds"])) == sorted(
        map(sorted, [[[1400, 1.0, 300.0], [1000, 1.5, 240.0]], [[1400, 2.0, 600.0], [1000, 3.0, 480.0]]])
    )
    assert len(asked["operations"]) == OPERATIONS
    assert (asked["blocking_w"], asked["limit_s"]) == (100.0, 5.0)


def test_tables(bench: ModuleType, profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "scratch" / "lowtime" / "bin").mkdir(parents=True)
    stand_in(tmp_path / "scratch" / "lowtime" / "bin" / "python", answer([1400] * OPERATIONS, state="stopped"))
    options = ["--profile", profile, "--blocking-power", "100", "--against", "2x2", "--growth", "2x1x2", "--scratch"]
    bench.main([*options, str(tmp_path / "scratch")])
    against, growth = capsys.readouterr().out.strip().split("\n\n")
    row = [cell.strip() for cell in against.splitlines()[2].split("|")[1:-1]]
    assert row[:4] == ["2x2", "> 6.0", "0.00% at +0.00% (+0.00%)", "50"]
    assert row[5:7] == ["7.86% at +0.00%", "7.86%"]
    assert row[-1].startswith("> ")
    assert growth.splitlines()[2].startswith("| 2x1x2 | 8 |")
    for table in (against, growth):
        assert len({line.count("|") for line in table.splitlines()}) == 1


def test_a_solver_that_fails_is_a_row_too(bench: ModuleType, profile: str, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'it broke' >&2\nexit 1\n", encoding="utf-8")
    python.chmod(0o755)
    found = bench.lowtime(str(python), bench.Input(profile, 1.0, 100.0), bench.Case(2, 1, 2, "ideal"), 5.0)
    assert found["state"] == "failed: it broke"
