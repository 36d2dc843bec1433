"""What a user can get wrong before the first step: one line and exit status 2 (on real Megatron: test_disturbed_runs.py)."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megatron_energy.cli import launch as launcher
from megatron_energy.emulation.catalog import load
from megatron_energy.errors import UserError
from megatron_energy.observe.run_directory import RunLock
from megatron_energy.session.emulated import on_emulated_nodes
from megatron_energy.session.emulated_session import Home
from megatron_energy.session.facts import JobFacts
from tests.emulated_gpus import emulated_node
from tests.session.facts import job
from tests.session.small_job import FACTS, MODEL, OPTIONS, make

GPU = load("a100-sxm4-80gb")


# Known before anything is started: neither torch nor Megatron is needed.


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("raise AssertionError('no training may start')\n")
    return path


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


HEADER = "stage,instruction,frequency,time,energy\n"
EARLY: dict[str, tuple[Callable[[Path], list[str]], str]] = {
    "gpu": (lambda d: ["--energy-emulated-gpu", "a1000"], "unknown emulated GPU 'a1000': choose one of a100-sxm4-80gb, "),
    "model": (lambda d: ["--energy-emulated-model", "gpt5"], "unknown model 'gpt5': choose one of gpt3-1.3b, "),
    "no profile": (lambda d: ["--energy-profile", str(d / "no.csv")], "no.csv does not exist: give the path of a CSV file"),
    "empty profile": (lambda d: ["--energy-profile", written(d / "p.csv", "")], "p.csv is empty: the first line must name"),
    "binary profile": (lambda d: ["--energy-profile", os.fspath(Path(launcher.__file__).parent)], "cannot be read"),
    "no such column": (lambda d: ["--energy-profile", written(d / "p.csv", "a,b\n1,2\n")], "column stage is missing"),
    "no number": (
        lambda d: ["--energy-profile", written(d / "p.csv", HEADER + "0,forward,1410,fast,1\n")],
        "p.csv, line 2, column time: 'fast' is not a number",
    ),
    "not finite": (
        lambda d: ["--energy-profile", written(d / "p.csv", HEADER + "0,forward,1410,nan,1\n")],
        "p.csv, line 2, column time: 'nan' must be a finite number",
    ),
    "model profile": (lambda d: ["--energy-emulated-model", str(d / "no.csv")], "no.csv does not exist"),
    "no plan": (lambda d: ["--energy-plan", str(d / "no.json")], "cannot read the plan"),
    "plan is text": (lambda d: ["--energy-plan", written(d / "p.json", "plan")], "p.json is no plan: not JSON"),
    "plan is another JSON": (lambda d: ["--energy-plan", written(d / "p.json", "[1]")], "p.json is no plan: make one with"),
    "plan of a later release": (
        lambda d: ["--energy-plan", written(d / "p.json", '{"schema": "megatron-energy/plan", "version": 99}')],
        "p.json has plan version 99",
    ),
    "damaged plan": (
        lambda d: ["--energy-plan", written(d / "p.json", '{"schema": "megatron-energy/plan", "version": 1, "units": [{}]}')],
        "p.json is damaged",
    ),
    "directory": (lambda d: ["--energy-dir", written(d / "file", "") + "/energy"], "choose another --energy-dir"),
    "policy": (lambda d: ["--energy-policy", "all"], "--energy-policy all: choose one of off, measure"),
    "slowdown": (lambda d: ["--energy-slowdown", "-0.1"], "--energy-slowdown -0.1: must be a fraction >= 0"),
    "flag": (lambda d: ["--energy-saving", "much"], "unknown option --energy-saving: choose one of"),
}


def one_line(capsys: pytest.CaptureFixture[str], *said: str) -> None:
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and err.count("\n") == 1, err
    assert all(part in err for part in said), err


@pytest.mark.parametrize("name", EARLY)
def test_mistakes_in_options_and_files(name: str, script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, said = EARLY[name]
    options = ["--energy-device", "emulated", "--energy-dir", str(tmp_path / "energy"), *words(tmp_path)]
    assert launcher.main(["--nproc", "2", str(script), *options]) == 2
    one_line(capsys, said)


@pytest.mark.parametrize("device", ["nvml", "auto"])
@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this host has an NVIDIA driver")
def test_no_driver(device: str, script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--nproc", "2", str(script), "--energy-policy", "measure", "--energy-device", device, "--energy-dir", str(tmp_path)]
    assert launcher.main(words) == 2
    one_line(capsys, "no NVIDIA driver here: use --energy-device emulated or run on a GPU host")


def test_a_dry_run_on_this_hosts_gpus_cannot_learn(script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with emulated_node(tmp_path / "node"):
        words = ["--nproc", "2", str(script), "--energy-policy", "dry-run", "--energy-device", "nvml", "--energy-dir", str(tmp_path)]
        assert launcher.main(words) == 2
    one_line(capsys, "--energy-policy dry-run requests no clock, so on this host's GPUs it learns nothing: give --energy-profile or")


def test_a_run_directory_that_another_run_uses(script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = RunLock(tmp_path / "energy", print)
    assert launcher.main(["--nproc", "2", str(script), "--energy-device", "emulated", "--energy-dir", str(tmp_path / "energy")]) == 2
    one_line(capsys, "energy is in use by another run (process ")
    assert not (tmp_path / "energy" / "logs").exists()
    lock.release()


# Known once the layout is known: before the first step, and without Megatron in these tests.


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("made"))


def start(directory: Path, facts: JobFacts = FACTS, **changed: Any) -> Home:
    """The home rank's start of a session."""
    options = replace(OPTIONS, directory=str(directory), **changed)
    return Home(options, on_emulated_nodes(facts.ranks, 8), GPU.sm_clocks_mhz, lambda line: None)


def test_the_plan_and_the_profile_themselves_are_accepted(made: Path, tmp_path: Path) -> None:
    start(tmp_path, plan=str(made / "plan.json"))
    start(tmp_path, profile=str(made / "profile.csv"))


def _set(*path: str | int, to: Any) -> Callable[[Any], None]:
    def change(plan: Any) -> None:
        for key in path[:-1]:
            plan = plan[key]
        plan[path[-1]] = to

    return change


def _ask_at_a_fifth_microbatch(plan: Any) -> None:
    asked = next(request for unit in plan["units"] for request in unit["requests"])
    asked.update(kind="forward", chunk=0, microbatch=4)


def _at_another_clock(plan: Any) -> None:
    unit = plan["units"][0]
    before = unit["segments"][0]["clock_mhz"]
    for part in (*unit["segments"], *unit["requests"]):
        part["clock_mhz"] = 1411 if part["clock_mhz"] == before else part["clock_mhz"]


def _for_eight_microbatches(plan: Any) -> None:
    plan["schedule"]["microbatches"] = 8
    for unit in plan["units"]:
        unit["requests"] = []  # they count operations, of which there are more now


def _without_requests(plan: Any) -> None:
    plan["units"][0]["requests"] = []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_set("layout", "tensor", to=2), "the plan was made for tensor parallel size 2, this run has 1"),
        (_for_eight_microbatches, "the plan was made for microbatches 8, this run has 4"),
        (_set("schedule", "p2p", to="overlap-wait"), "the plan was made for p2p overlap-wait, this run has overlap"),
        (_set("fingerprint", to="0123456789ab-gpt3-13bx4"), "the plan was made for another model"),
        (_at_another_clock, "the plan uses 1411 MHz, which NVIDIA A100-SXM4-80GB does not support"),
        (_set("lead_s", to=0.0), "the plan requests raises 0.000 s early, but this node needs 0.030 s: make it with --lead 0.030"),
        (_ask_at_a_fifth_microbatch, "its schedule has no forward 4 of chunk 0"),
        (_without_requests, "the plan's segments for stage 0 come without requests"),
    ],
)
def test_plans_for_something_else(change: Callable[[Any], None], said: str, made: Path, tmp_path: Path) -> None:
    plan = json.loads((made / "plan.json").read_text())
    change(plan)
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(UserError) as refused:
        start(tmp_path, plan=str(tmp_path / "plan.json"))
    assert said in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        (lambda row: row[0] != "1", "the profile has no forward of stage 1, chunk 0 (it has stages 0)"),
        (lambda row: row[:3] != ["1", "1", "backward"], "the profile has no backward of stage 1, chunk 1 (it has stages 0, 1)"),
        (lambda row: row[3] != "1410", "the profile has backward of stage 0 up to 1275 MHz only, this GPU runs at 1410"),
        (lambda row: row[:3] != ["0", "1", "forward"] or row[3] == "855", "the profile has forward of stage 0 up to 855 MHz only"),
    ],
)
def test_profiles_that_lack_something(keep: Callable[[list[str]], bool], said: str, made: Path, tmp_path: Path) -> None:
    header, *rows = (made / "profile.csv").read_text().splitlines()
    (tmp_path / "profile.csv").write_text("\n".join([header, *(row for row in rows if keep(row.split(",")))]))
    with pytest.raises(UserError) as refused:
        start(tmp_path, profile=str(tmp_path / "profile.csv"))
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_an_emulated_model_from_a_profile_of_another_pipeline(made: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the profile has 2 stages, the run 4: use a profile of the same pipeline size"):
        start(tmp_path, job(pipeline=4, chunks=2, microbatches=4, **MODEL), emulated_model=str(made / "profile.csv"))
