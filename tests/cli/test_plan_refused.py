"""What ``megatron-energy plan`` refuses: status 2 and one line that says what is wrong and what to do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.offline import TWO_STAGES, Shell, write_profile
from tests.source_tree import ROOT

JOB = ["--pipeline", 2, "--microbatches", 2, "--blocking-power", 100]


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return write_profile(tmp_path / "profile.csv", TWO_STAGES)


def test_no_such_profile(tmp_path: Path, shell: Shell) -> None:
    assert shell.complaint("plan", "--profile", tmp_path / "none.csv", *JOB) == (
        f"profile {tmp_path}/none.csv does not exist: give the path of a CSV file with the columns stage,instruction,frequency,time,energy"
    )


def test_a_stage_that_was_not_measured(profile: Path, shell: Shell) -> None:
    line = shell.complaint("plan", "--profile", profile, "--pipeline", 3, "--microbatches", 3, "--blocking-power", 100)
    assert line.startswith("the profile has no forward of stage 2")
    assert "it has stages 0, 1" in line


@pytest.mark.parametrize(
    ("time", "problem"), [("nan", "a finite number"), ("-1", "zero or more"), ("inf", "a finite number"), ("1 s", "not a number")]
)
def test_values_that_make_no_sense(tmp_path: Path, time: str, problem: str, shell: Shell) -> None:
    path = tmp_path / "profile.csv"
    path.write_text(f"stage,instruction,frequency,time,energy\n0,forward,1400,1.0,300\n0,backward,1400,{time},300\n", encoding="utf-8")
    line = shell.complaint("plan", "--profile", path, "--pipeline", 1, "--microbatches", 1, "--blocking-power", 100)
    assert line.startswith(f"{path}, line 3, column time: '{time}'")
    assert problem in line


def test_no_blocking_power(profile: Path, shell: Shell) -> None:
    assert shell.complaint("plan", "--profile", profile, "--pipeline", 2, "--microbatches", 2) == (
        "the profile has no blocking power: give --blocking-power W, or --gpu NAME to take the catalog's"
    )


def test_no_energy_at_all(tmp_path: Path, shell: Shell) -> None:
    path = write_profile(tmp_path / "profile.csv", [(0, step, 1400, 1.0, 0.0) for step in ("forward", "backward")])
    line = shell.complaint("plan", "--profile", path, "--pipeline", 1, "--microbatches", 1, "--blocking-power", 0)
    assert line == f"{path}: the baseline uses no energy, so nothing can be saved: measure the energies"


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--policy", "fastest"], "argument --policy: invalid choice: 'fastest' (choose from"),
        (["--p2p", "eager"], "argument --p2p: invalid choice: 'eager'"),
        (["--gpu", "a100"], "choose one of a100-sxm4-80gb"),
        (["--max-switches", "-1"], "argument --max-switches: '-1' is not a whole number >= 0"),
        (["--max-switches", "2.5"], "argument --max-switches: '2.5' is not a whole number >= 0"),
        (["--tensor", "0"], "argument --tensor: '0' is not a whole number >= 1"),
        (["--data", "two"], "argument --data: 'two' is not a whole number >= 1"),
        (["--slowdown", "-0.1"], "argument --slowdown: '-0.1' is not a number from 0 to 100"),
        (["--slowdown", "1e308"], "argument --slowdown: '1e308' is not a number from 0 to 100"),
        (["--slowdown", "nan"], "argument --slowdown: 'nan' is not a number from 0 to 100"),
        (["--straggler", "0.9"], "argument --straggler: '0.9' is not a number from 1 to 10"),
        (["--blocking-power", "-5"], "argument --blocking-power: '-5' is not a number >= 0"),
        (["--profile-scale", "0"], "argument --profile-scale: '0' is not a number >= 1e-09"),
        (["--clock-step", "0"], "argument --clock-step: '0' is not a whole number >= 1"),
        (["--lead", "inf"], "argument --lead: 'inf' is not a number >= 0"),
        (["--max-switches", "9" * 30], "is more than 1,000,000,000"),
        (["--data", "9" * 400], "is more than 1,000,000,000"),
        (["--blocking-power", "1e308"], "the baseline's time or energy is beyond any number"),
        (["--by-rank", "--slower", "1=1e300"], "argument --slower: '1=1e300' is not RANK=FACTOR"),
        (["--by-rank", "--slower", "1=1.1", "--slower", "1=1.2"], "--slower: rank 1 is given more than once: keep one"),
        (["--out", "x" * 300], "File name too long; choose another --out"),
        (["--slow", "0.1"], "unrecognized arguments: --slow 0.1"),
    ],
)
def test_options(profile: Path, options: list[str], part: str, shell: Shell) -> None:
    job = ["--pipeline", 2, "--microbatches", 2] + ([] if "--gpu" in options else ["--blocking-power", 100])
    assert part in shell.complaint("plan", "--profile", profile, *job, *options)


@pytest.mark.parametrize(
    ("sizes", "part"),
    [
        (["--pipeline", 0, "--microbatches", 2], "argument --pipeline: '0' is not a whole number >= 1"),
        (["--pipeline", 2, "--microbatches", 0], "argument --microbatches: '0' is not a whole number >= 1"),
        (["--pipeline", 1, "--microbatches", 2, "--chunks", 2], "2 chunks need a pipeline of at least 2 stages"),
        (["--pipeline", 2, "--microbatches", 3, "--chunks", 2], "3 microbatches in groups of 2 leave 1: choose sizes that leave none"),
        (["--pipeline", 2, "--microbatches", 2, "--chunks", 2, "--p2p", "batched"], "use p2p mode overlap or overlap-wait"),
        (
            ["--pipeline", 2, "--microbatches", 2, "--chunks", 2, "--group-size", 1],
            "group size 1 must be between 2 stages and 2 microbatches",
        ),
        (
            ["--pipeline", 2, "--microbatches", 2, "--chunks", 2, "--group-size", 3],
            "group size 3 must be between 2 stages and 2 microbatches",
        ),
        (["--pipeline", 2, "--microbatches", 2, "--group-size", 2], "--group-size needs --chunks of at least 2"),
        (["--pipeline", 2, "--microbatches", 2, "--warmup-flush"], "the warm-up flush needs several chunks"),
        (["--pipeline", 100000, "--microbatches", 100000], "make 20,000,000,000 operations, more than the 10,000,000 that can be planned"),
        (["--microbatches", 2], "the following arguments are required: --pipeline"),
    ],
)
def test_sizes_that_megatron_would_refuse(profile: Path, sizes: list[object], part: str, shell: Shell) -> None:
    assert part in shell.complaint("plan", "--profile", profile, "--blocking-power", 100, *sizes)


def test_a_file_that_cannot_be_written(profile: Path, tmp_path: Path, shell: Shell) -> None:
    assert shell.complaint("plan", "--profile", profile, *JOB, "--out", tmp_path) == (
        f"cannot write the plan {tmp_path}: it is a folder; give --out a file"
    )
    line = shell.complaint("plan", "--profile", profile, *JOB, "--out", profile / "plan.json")
    assert line.startswith(f"cannot write the plan {profile}/plan.json: ")
    assert line.endswith("choose another --out")
    assert [path.name for path in tmp_path.iterdir()] == ["profile.csv"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_without_permission(profile: Path, tmp_path: Path, shell: Shell) -> None:
    (tmp_path / "theirs").mkdir(mode=0o500)
    assert "Permission denied" in shell.complaint("plan", "--profile", profile, *JOB, "--out", tmp_path / "theirs" / "plan.json")


def test_the_process_ends_with_status_2_and_no_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "megatron_energy", "plan", "--profile", str(tmp_path / "none.csv"), *map(str, JOB)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
