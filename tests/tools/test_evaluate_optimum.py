"""The tool that compares policies with the true optimum."""

import pytest

from tests.tools.loading import load_tool

optimum = load_tool("evaluate_optimum")


def test_the_tool_prints_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimum, "SHAPES", {"plain": optimum.SHAPES["plain"]})
    assert optimum.main(["--problems", "1"]) == 0
    head, _, row = capsys.readouterr().out.splitlines()
    assert head.startswith("| pipeline | plans | bound below optimum | operations | segments (0) |")
    assert row.startswith("| plain | 6,561 | ")
    assert len(row.split("|")) == len(head.split("|"))


def test_every_plan_is_tried_once() -> None:
    plans = optimum.every_plan("one stage")
    assert plans.shape == (3**10, 10)
    assert len({plan.tobytes() for plan in plans}) == 3**10


def test_a_late_plan_is_not_a_plan() -> None:
    problem = optimum.small_problem("plain", 0)
    with pytest.raises(ValueError, match="the deadline is"):
        optimum.energy_of(problem, problem.baseline_clocks + 2)
