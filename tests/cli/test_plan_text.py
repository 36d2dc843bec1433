"""What a person reads of a plan."""

from pathlib import Path

import pytest

from megatron_energy.cli.output import _columns, print_plan
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.planning.plan import Expectation, Plan, Segment, UnitPlan
from tests.cli.offline import TWO_STAGES, Shell, write_profile

TEXT = """\
segments plan for 2 GPUs: 2 stages, 2 microbatches, p2p ideal

              baseline     plan   change
iteration, s    9.0000   9.0000  +0.000%
energy, J      4,200.0  3,870.0   -7.86%

bound: at this deadline no plan saves more than 7.86%; 100.0% of it reached
switches per GPU and iteration: 1.0 mean, 2 at most

stage   MHz  then, from forward (F) or backward (B) microbatch on
    0  1400  F1 1000  B1 1400
    1  1400
"""


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.fixture
def plan(tmp_path: Path) -> list[object]:
    profile = write_profile(tmp_path / "profile.csv", TWO_STAGES, blocking_w=100.0)
    return ["plan", "--profile", profile, "--pipeline", 2, "--microbatches", 2]


def stripped(text: str) -> str:
    """Without the spaces that fill up the lines of a table."""
    return "".join(line.rstrip() + "\n" for line in text.splitlines())


def test_the_whole_text(plan: list[object], shell: Shell) -> None:
    assert stripped(shell.text(*plan)) == TEXT


def test_the_written_file_is_named(plan: list[object], tmp_path: Path, shell: Shell) -> None:
    path = tmp_path / ("long-" * 20) / "plan.json"
    assert shell.text(*plan, "--out", path).endswith(f"\n\nwritten to {path}\n")  # in one piece, however long


@pytest.mark.parametrize("columns", [80, 200, 40])
def test_tables_fit(plan: list[object], columns: int, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = shell.text(*plan, "--chunks", 2, "--policy", "operations", "--microbatches", 8).splitlines()
    assert max(len(line) for line in lines) <= max(columns, 72)
    assert any(line.startswith("    1  ") for line in lines)  # no column is lost on a narrow terminal


def test_a_plan_per_operation_is_cut_short() -> None:
    # Every other microbatch would be a segment of its own; the text shows the first 16 and counts the rest.
    segments = [Segment("forward", 0, number, 1000 + number % 2) for number in range(20)]
    text = _columns(segments, interleaved=False, width=66)
    assert text.splitlines()[-1] == "... 4 more"
    assert text.count("F") == 16


def test_steps_that_are_no_operations_have_their_names() -> None:
    segments = [Segment("backward", 1, 3, 1200), Segment("grad-sync", -1, -1, 900), Segment("optimizer", -1, -1, 1410)]
    assert _columns(segments, interleaved=True, width=66) == "B1.3      1200  grad-sync  900  optimizer 1410"


def test_ranks_of_a_stage_that_differ_have_rows_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    units = (
        UnitPlan(0, (Segment("forward", 0, 1, 1200), Segment("backward", 0, 1, 1410)), ranks="0-1"),
        UnitPlan(0, (Segment("forward", 0, 0, 1410),), ranks="2"),
        UnitPlan(1, (Segment("forward", 0, 0, 1005),), ranks="3-5"),
    )
    layout = {"tensor": 3, "context": 1, "expert": 1, "data": 1, "pipeline": 2}
    plan = Plan(layout, Schedule(2, 4), "segments", 8, 0.0, Expectation(1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0), units)
    print_plan(plan)
    assert stripped(capsys.readouterr().out).splitlines()[-3:] == [
        "0 (ranks 0-1)  1410  F1 1200  B1 1410",
        "  0 (ranks 2)  1410",
        "1 (ranks 3-5)  1005",
    ]


def test_a_straggler_is_shown_beside_this_replica(plan: list[object], shell: Shell) -> None:
    text = shell.text(*plan, "--straggler", 2)
    assert "this replica ends, s    9.0000" in text
    assert "all replicas end, s    18.0000  18.0000  +0.000%" in text
    assert "deadline 18.0000 s: straggler 2 x (1 + slowdown 0) x baseline" in text


def test_figures_from_emulated_gpus_say_so(plan: list[object], tmp_path: Path, shell: Shell) -> None:
    assert "emulated" not in shell.text(*plan)
    assert shell.json(*plan)["emulated"] is False
    path = tmp_path / "profile.csv"
    header, *rows = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([header + ",emulated", *(row + ",True" for row in rows)]) + "\n", encoding="utf-8")
    assert "All figures are emulated" in shell.text(*plan)
    assert shell.json(*plan)["emulated"] is True
