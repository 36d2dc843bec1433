"""The patches on the files that they were made for, and the commands of the two pages about them, in order."""

import ast
import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from megatron_energy.errors import UserError
from megatron_energy.megatron import patching
from megatron_energy.megatron.patch_file import Patch
from megatron_energy.megatron.patched_operations import HOOK
from tests import documents
from tests.cli.offline import Shell
from tests.source_tree import ROOT

PATCHES = patching.all_patches()
PAGE = ROOT / "docs" / "patches.md"


def installed(patch: Patch) -> patching.Target | None:
    """The file that the patch is for, of this environment's megatron-core or of another version beside it."""
    sites = [Path(folder) for folder in os.environ.get("MEGATRON_ENERGY_OTHER_CORES", "").split(os.pathsep) if folder]
    with contextlib.suppress(UserError):
        sites.append(patching.installed_site())
    for site in sites:
        with contextlib.suppress(UserError):
            target = patching.find(site)
            if target.patch == patch:
                return target
    return None


@pytest.fixture(params=PATCHES, ids=lambda patch: patch.version)
def clone(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """What patches look at of a pristine megatron-core, in a folder of its own."""
    target = installed(request.param)
    if target is None:
        pytest.skip(f"megatron-core {request.param.version} is not installed, nor in MEGATRON_ENERGY_OTHER_CORES")
    file = tmp_path.resolve() / "Megatron-LM" / target.patch.target
    file.parent.mkdir(parents=True)
    file.write_bytes(target.patch.taken_out_of(target.content) if target.patched else target.content)
    return tmp_path.resolve() / "Megatron-LM"


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


def test_two_versions_have_the_same_insertions() -> None:
    """They differ in where a line goes, not in what it says."""
    assert len(PATCHES) == 2
    first, second = ([insertion.lines for insertion in patch.insertions] for patch in PATCHES)
    assert first == second


def test_a_patch_file_holds_its_head_and_insertions_alone() -> None:
    for patch in PATCHES:
        text = (ROOT / "patches" / f"megatron-core-{patch.version}.patch").read_text(encoding="utf-8")
        assert {line[:1] for line in text.splitlines()[6:]} == {"@", "+"}


def test_no_line_is_upstream_s(clone: Path) -> None:
    target = patching.find(clone)
    upstream = {line.strip() for line in target.content.split(b"\n")}
    inserted = [line.strip() for insertion in target.patch.insertions for line in insertion.lines]
    punctuation = {b"", b")"}
    assert [line for line in inserted if line in upstream - punctuation] == []


def test_a_pristine_file_is_patched_and_comes_back_to_the_byte(clone: Path, shell: Shell) -> None:
    target = patching.find(clone)
    assert not target.patched
    assert "the patch fits" in shell.text("patch", "verify", "--site", clone)
    assert "67 lines put in" in shell.text("patch", "apply", "--site", clone)
    patched = target.path.read_bytes()
    assert "patched; " in shell.text("patch", "verify", "--site", clone)
    shell.text("patch", "revert", "--site", clone)
    assert target.path.read_bytes() == target.content
    file = ROOT / "patches" / f"megatron-core-{target.patch.version}.patch"
    subprocess.run(["git", "apply", "--unidiff-zero", str(file)], cwd=clone, check=True)
    assert target.path.read_bytes() == patched, "git makes the same of it"


def test_every_call_stands_behind_a_test_of_the_name_and_pairs_up(clone: Path) -> None:
    target = patching.find(clone)
    tree = ast.parse(target.patch.applied_to(target.content))
    guard = f"{HOOK} is not None"
    guarded = [node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == guard]
    calls = [call for call in ast.walk(tree) if isinstance(call, ast.Call) and ast.unparse(call.func) == HOOK]
    assert [ast.unparse(call) for node in guarded for call in ast.walk(node) if call in calls] == [ast.unparse(c) for c in calls]
    points = [ast.unparse(call).rpartition(", ")[0] for call in calls]
    begins, ends = ([point for point in points if point.endswith(f"'{side}'")] for side in ("begin", "end"))
    assert len(begins) == 10, "4 without a pipeline, 4 plain, 2 interleaved"
    assert [point.replace("'begin'", "'end'") for point in begins] == ends
    others = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == HOOK and isinstance(node.ctx, ast.Store)]
    assert len(others) == 1 and f"{HOOK} = None" in [ast.unparse(node) for node in tree.body]


def test_the_commands_of_the_page_in_order(clone: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the training is left out, which tests/megatron/test_patched_runs.py runs."""
    monkeypatch.chdir(clone.parent)
    target = patching.find(clone)
    states = []
    for command in documents.commands(PAGE):
        if command.words[0] == "megatron-energy":
            shell.text(*command.words[1:])
            states.append((command.words[2], patching.find(clone).patched))
    assert states == [("list", False), ("verify", False), ("apply", True), ("revert", False)]
    assert target.path.read_bytes() == target.content


def test_the_page_shows_what_the_command_prints(shell: Shell) -> None:
    ((command, block),) = documents.shown_outputs(PAGE)
    assert block.text == shell.text(*command.words[1:])


def test_the_commands_of_the_patches_own_page(tmp_path: Path, shell: Shell) -> None:
    listed, made = documents.commands(ROOT / "patches" / "README.md")
    assert shell.text(*listed.words[1:]).count("megatron-core ") == len(PATCHES)
    for folder, text in (("released", "one\n"), ("edited", "one\ntwo\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "schedules.py").write_text(text)
    (tmp_path / "patches").mkdir()
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "make_patch.py", tmp_path / "tools")  # it writes beside itself
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, *made.words[1:]], cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert [path.name for path in (tmp_path / "patches").iterdir()] == ["megatron-core-0.20.0.patch"]
