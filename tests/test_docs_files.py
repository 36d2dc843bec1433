"""docs/files.md: its examples are read by the code that reads a user's files, and leave no field out."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from megatron_energy.observe.facts import PlanFacts
from megatron_energy.observe.interval import combine
from megatron_energy.observe.journal import FILE_NAME, Journal
from megatron_energy.observe.phases import Windows
from megatron_energy.observe.report import build_report
from megatron_energy.planning.plan import Plan, Segment, TransitionRequest
from megatron_energy.planning.plan_file import load_plan
from megatron_energy.profiles.files import load_profile
from megatron_energy.profiles.rows import OPTIONAL, REQUIRED
from megatron_energy.records.summary import GpuSummary, IterationSummary
from tests import documents
from tests.source_tree import ROOT

PAGE = ROOT / "docs" / "files.md"


def example(kind: str, schema: str = "") -> str:
    """The page's one block of this kind that names the schema."""
    (block,) = (block for block in documents.blocks(PAGE) if block.kind == kind and schema in block.text)
    return block.text


def names(kind: type[Any]) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def test_the_profile_loads_as_described(tmp_path: Path) -> None:
    path = tmp_path / "profile.csv"
    path.write_text(example("csv"), encoding="utf-8")
    profile = load_profile(path)
    assert profile.blocking_power_w == 84.0
    assert profile.provenance["gpu"] == "NVIDIA A100-SXM4-80GB"
    assert profile.provenance["power_limit_w"] == 400.0
    forward = profile.curves[1, 1, "forward"]
    assert forward.time_s.tolist() == [0.06, 0.075]  # the first microbatch's row is left out
    assert {instruction for _, _, instruction in profile.curves} == {"forward", "backward", "grad-sync", "optimizer", "p2p", "blocking"}


def test_every_column_is_described() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [column for column in REQUIRED + OPTIONAL if f"`{column}`" not in text] == []


def test_the_plan_loads_and_leaves_nothing_out(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(example("json", "megatron-energy/plan"), encoding="utf-8")
    plan = load_plan(path)
    assert (plan.gpus, plan.switches_max, plan.switches_mean) == (12, 2, 1.0)
    body = json.loads(path.read_text(encoding="utf-8"))
    assert set(body) == names(Plan) | {"schema", "version"}
    written = plan.to_dict()
    for part in ("schedule", "expected", "layout"):
        assert set(body[part]) == set(written[part]), part
    assert all(set(unit) == set(other) for unit, other in zip(body["units"], written["units"], strict=True))
    assert all(set(segment) == names(Segment) for unit in body["units"] for segment in unit["segments"])
    assert all(set(request) == names(TransitionRequest) for unit in body["units"] for request in unit["requests"])


def test_the_iterations_are_read_as_the_page_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "runs/gpt/tensorboard/energy"
    run_dir.mkdir(parents=True)
    (run_dir / FILE_NAME).write_text(example("json", "megatron-energy/iterations"), encoding="utf-8")
    *_, last = Journal(run_dir).read()
    assert (last.phase, len(last.gpus), last.gpus[1].requests) == ("planned", 2, 6)
    lines = [json.loads(line) for line in example("json", "megatron-energy/iterations").splitlines()]
    measured = names(GpuSummary) - set(lines[1]["gpus"][0])
    assert set(lines[1]["gpus"][0]) < names(GpuSummary)
    assert all(set(line) == (names(IterationSummary) - {"gpus"}) | measured for line in lines[2:])
    monkeypatch.chdir(tmp_path)
    exec(compile(example("python"), str(PAGE), "exec"), {})
    assert capsys.readouterr().out.splitlines()[-1] == "20 planned 6621.2 10.1"


def test_the_summary_leaves_nothing_out() -> None:
    shown = json.loads(example("json", "megatron-energy/summary"))
    gpus = [GpuSummary(0, "node0", 0, "GPU-0", 0, 0, 0, 1.0, 1.0, 1410.0, 0.1)]
    found = [combine([IterationSummary(1, phase, 1.0, gpus)]) for phase in ("baseline", "planned", "measure", "sweep")]
    written = build_report(Windows(*found), PlanFacts("segments")).to_dict()
    assert list(shown) == list(written)
    assert isinstance(written["files"], dict) and isinstance(written["gpus"], list) and isinstance(written["gpus"][0], dict)
    assert set(shown["files"]) == set(written["files"])
    assert set(shown["gpus"][0]) == set(written["gpus"][0])
    assert isinstance(written["sweep"], dict) and set(shown["sweep"]) == set(written["sweep"])
    total_j = sum(gpu["energy_j"] for gpu in shown["gpus"])
    assert shown["energy_j"] == pytest.approx(total_j)
    assert shown["saved_percent"] == pytest.approx(100 * (1 - total_j / shown["baseline_energy_j"]), abs=0.05)
    assert shown["bound_share_percent"] == pytest.approx(100 * shown["saved_percent"] / shown["bound_saved_percent"], abs=0.1)
