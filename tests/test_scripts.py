"""The shell scripts: they parse, and mistakes are told in one line with what to do."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.source_tree import ROOT, tracked_files


def run(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if name not in ("CI", "VIRTUAL_ENV")}
    return subprocess.run(
        [str(ROOT / "scripts" / script), *arguments], env={**variables, **environment}, capture_output=True, text=True, check=False
    )


def test_every_shell_script_parses() -> None:
    scripts = [path for path in tracked_files() if path.suffix == ".sh" or path == ROOT / ".ci" / "run"]
    assert len(scripts) >= 4
    for path in scripts:
        subprocess.run(["bash", "-n", str(path)], check=True)


@pytest.mark.parametrize(
    ("script", "arguments", "advice"),
    [
        ("setup.sh", ["--tests"], "setup.sh: no option --tests: use --test and --system"),
        ("quickstart.sh", ["--gpus", "4"], "quickstart.sh: no option --gpus: use --out DIR, --iterations N, --system"),
        ("quickstart.sh", ["--iterations", "ten"], "quickstart.sh: --iterations 'ten': give a whole number, 1 or more"),
        ("quickstart.sh", ["--iterations"], "quickstart.sh: --iterations '': give a whole number, 1 or more"),
        ("quickstart.sh", ["--out"], "quickstart.sh: --out: give a folder"),
        ("quickstart.sh", ["--out", "/dev/null/run"], "quickstart.sh: cannot write to /dev/null/run: give --out another folder"),
    ],
)
def test_a_wrong_option_is_refused(script: str, arguments: list[str], advice: str) -> None:
    done = run(script, *arguments)
    assert (done.returncode, done.stderr.strip()) == (2, advice)


@pytest.mark.parametrize("script", ["quickstart.sh", "setup.sh", "test.sh"])
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_is_the_head_of_the_script(script: str, option: str) -> None:
    done = run(script, option)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Usage: scripts/{script} " in done.stdout and "--system" in done.stdout
    assert "set -euo" not in done.stdout and "#" not in done.stdout


def test_a_missing_python_is_told(tmp_path: Path) -> None:
    done = run("setup.sh", PYTHON="python-that-is-not-there", MEGATRON_ENERGY_VENV=str(tmp_path / "venv"))
    assert done.returncode == 2
    assert done.stderr == "setup.sh: no python-that-is-not-there here: install Python 3.10 or newer, or set PYTHON to its path\n"


def test_an_old_python_is_told(tmp_path: Path) -> None:
    # Answers every question like a Python that is too old: with "no".
    old = tmp_path / "python2"
    old.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    old.chmod(0o755)
    done = run("setup.sh", PYTHON=str(old), MEGATRON_ENERGY_VENV=str(tmp_path / "venv"))
    assert done.returncode == 2
    assert done.stderr == f"setup.sh: {old} is older than 3.10: set PYTHON to the path of a newer one\n"


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    done = run("setup.sh", MEGATRON_ENERGY_VENV=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr == f"setup.sh: {tmp_path} holds files but no Python environment: set MEGATRON_ENERGY_VENV to a new folder\n"
    assert list(tmp_path.iterdir()) == [tmp_path / "thesis.txt"]


def test_a_failed_command_shows_its_last_lines_and_one_line_of_advice(tmp_path: Path) -> None:
    code = f'. "{ROOT}/scripts/lib/messages.sh"; quietly "counting" sh -c "seq 1 30; exit 3"; echo not reached'
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=False, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert done.returncode == 2
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[:12] == [str(number) for number in range(19, 31)]
    (log,) = tmp_path.iterdir()
    assert lines[12:] == [f"bash: counting failed; its last lines stand above, all of them in {log}"]
