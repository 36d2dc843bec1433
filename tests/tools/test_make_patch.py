"""The tool that makes a patch: an edit that only inserts becomes the patch that makes it again."""

import os
import subprocess
import sys
from pathlib import Path

from megatron_energy.megatron.patch_file import parse
from tests.source_tree import ROOT


def make(folder: Path, edited: str) -> subprocess.CompletedProcess[str]:
    (folder / "released.py").write_text("one\ntwo\n")
    (folder / "edited.py").write_text(edited)
    command = [sys.executable, "tools/make_patch.py", "--version", "1.2.3", folder / "released.py", folder / "edited.py", "--out", folder]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(list(map(str, command)), cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_an_edit_becomes_a_patch(tmp_path: Path) -> None:
    done = make(tmp_path, "one\ninserted\ntwo\n")
    path = tmp_path / "megatron-core-1.2.3.patch"
    assert (done.returncode, done.stderr, done.stdout) == (0, "", f"{path}: 1 lines\n")
    assert parse(path.read_text()).applied_to(b"one\ntwo\n") == b"one\ninserted\ntwo\n"


def test_an_edit_that_changes_a_line_is_refused(tmp_path: Path) -> None:
    done = make(tmp_path, "one\nTWO\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "make_patch.py: line 2 was changed or left out: a patch only inserts lines\n"
    assert not list(tmp_path.glob("*.patch"))
