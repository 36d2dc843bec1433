"""``megatron-energy plan --graph``."""

import json
from pathlib import Path

import pytest

from tests.cli.offline import TWO_STAGES, Shell, write_profile

# The pipeline of tests/cli/offline.py as a file: two stages, two microbatches; F1 of stage 0 has 2 s to spare, B0 1 s.
ORDER = {"0": ("F0", "F1", "B0", "B1"), "1": ("F0", "B0", "F1", "B1")}
GRAPH = {
    "schema": "megatron-energy/graph",
    "version": 1,
    "units": [{"name": "0"}, {"name": "1"}],
    "operations": [
        {"name": unit + name, "unit": unit, "instruction": {"F": "forward", "B": "backward"}[name[0]]}
        for unit, names in ORDER.items()
        for name in names
    ],
    "edges": [{"before": f"{a}{x}{m}", "after": f"{b}{x}{m}"} for a, b, x in (("0", "1", "F"), ("1", "0", "B")) for m in (0, 1)],
}


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.fixture
def job(tmp_path: Path) -> list[object]:
    (tmp_path / "graph.json").write_text(json.dumps(GRAPH), encoding="utf-8")
    profile = write_profile(tmp_path / "profile.csv", TWO_STAGES, 100.0)
    return ["plan", "--profile", profile, "--graph", tmp_path / "graph.json"]


def test_the_same_as_the_schedule_itself(job: list[object], shell: Shell) -> None:
    for policy in ("segments", "operations", "roles", "power-limit"):
        options = ["--policy", policy, "--slowdown", 0.1, "--tensor", 2]
        graph = shell.json(*job, *options)
        schedule = shell.json(*job[:3], "--pipeline", 2, "--microbatches", 2, *options)
        for name in ("iteration_s", "energy_j", "baseline_energy_j", "saved_percent", "bound_saved_percent", "gpus", "policy"):
            if policy == "roles" and name in ("iteration_s", "energy_j", "saved_percent"):
                continue  # the file tells no roles: forwards and backwards have one clock each
            assert graph[name] == pytest.approx(schedule[name]), (policy, name)


def test_text_and_file(job: list[object], shell: Shell, tmp_path: Path) -> None:
    text = shell.text(*job, "--policy", "operations", "--out", tmp_path / "plan.json")
    assert text.startswith("operations plan for 2 units\n")
    assert "iteration, s: baseline 9, plan 9 (+0.000%)" in text
    assert "0: 0F1 1000, 0B1 1400\n1: 1F0 1400\n" in text
    assert text.endswith(f"written to {tmp_path / 'plan.json'}\n")
    body = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert [s["operation"] for s in body["units"][0]["segments"]] == ["0F1", "0B1"]
    assert body["provenance"]["blocking_power_w"] == 100


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--pipeline", 2], "leave out --pipeline"),
        (["--chunks", 2], "leave out --chunks"),
        (["--p2p", "overlap"], "leave out --p2p"),
        (["--warmup-flush"], "leave out --warmup-flush"),
        (["--clock-step", 100], "leave out --clock-step"),
        (["--policy", "envpipe"], "EnvPipe knows plain 1F1B only, not graphs from files"),
        (["--out", "."], "cannot write the plan .: it is a folder"),
    ],
)
def test_what_does_not_go_with_a_graph(job: list[object], options: list[object], part: str, shell: Shell) -> None:
    assert part in shell.complaint(*job, *options)


def test_a_graph_that_the_profile_does_not_cover(job: list[object], shell: Shell, tmp_path: Path) -> None:
    body = {**GRAPH, "units": [{"name": "0"}, {"name": "1", "stage": 5}]}
    (tmp_path / "graph.json").write_text(json.dumps(body), encoding="utf-8")
    assert shell.complaint(*job).startswith("operation '1F0': the profile has no forward of stage 5 (it has stages 0, 1)")


def test_without_graph_and_pipeline(job: list[object], shell: Shell) -> None:
    assert shell.complaint(*job[:3]) == "the following arguments are required: --pipeline, --microbatches (or --graph FILE)"
