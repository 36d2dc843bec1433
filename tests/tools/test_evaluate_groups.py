"""What planning for slow GPUs is worth: the tool, on small jobs."""

import dataclasses

import pytest

from tests.tools.loading import load_tool

groups = load_tool("evaluate_groups")


def row_of(case: object, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(groups, "CLOCK_STEP_MHZ", 60)
    return groups.evaluate(case, groups.catalog_job(case, 2, 2, 4), 4)


@pytest.mark.parametrize("number", [1, 3, 6], ids=["tensor group", "replica", "experts"])
def test_clocks_per_gpu_save_more_than_one_list_per_stage(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    row = row_of(groups.CASES[number], monkeypatch)
    assert row.per_gpu[0] > row.per_stage[0] + 0.3
    assert row.per_gpu[1] <= 0.0
    assert row.per_stage[1] <= 0.0
    assert row.per_gpu[0] <= row.bound_percent + 1e-9


def test_nothing_is_gained_where_all_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    row = row_of(dataclasses.replace(groups.CASES[1], slow_gpus={}), monkeypatch)
    assert row.healthy == row.per_stage == pytest.approx(row.per_gpu)
    assert len(row.plan.units) == 2


def test_published_profiles_have_to_be_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("MEGATRON_ENERGY_DATA", raising=False)
    assert groups.main(["--workload", "published"]) == 2
    assert "set MEGATRON_ENERGY_DATA" in capsys.readouterr().err
