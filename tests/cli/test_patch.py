"""``megatron-energy patch`` on a small made-up file: every state that a folder can be in, and every way to fail."""

import os
import py_compile
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from megatron_energy.megatron import patching
from megatron_energy.megatron.patch_file import between, digest, parse
from tests.cli.offline import Shell

TARGET = "megatron/core/pipeline_parallel/schedules.py"
RELEASED = b"def schedule():\n    return 'released'\n"
EDITED = b"# inserted\ndef schedule():\n    return 'patched'\n    return 'released'\n"
INFO = "MAJOR = {0}\nMINOR = {1}\nPATCH = {2}\nPRE_RELEASE = '{3}'\n"
PATCHES = [parse(between(RELEASED, EDITED, "1.2.3", TARGET)), parse(between(b"2\n", b"1\n2\n", "1.3.0", TARGET))]


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setattr(patching, "all_patches", lambda: PATCHES)
    return Shell(capsys)


def make_site(folder: Path, content: bytes = RELEASED, version: tuple[str, str, str, str] = ("1", "2", "3", "")) -> Path:
    """A folder that holds megatron/ as far as patches look at it."""
    (folder / TARGET).parent.mkdir(parents=True)
    (folder / TARGET).write_bytes(content)
    (folder / "megatron/core/__init__.py").touch()
    (folder / patching.PACKAGE_INFO).write_text(INFO.format(*version))
    return folder


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return make_site(tmp_path.resolve() / "site")


def test_a_patch_comes_and_goes(shell: Shell, site: Path) -> None:
    """The file as it was: content and mode; nothing is left beside it."""
    file = site / TARGET
    file.chmod(0o640)
    said = [shell.text("patch", action, "--site", site) for action in ("verify", "apply", "apply", "verify")]
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (EDITED, 0o640)
    said += [shell.text("patch", action, "--site", site) for action in ("revert", "revert", "verify")]
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (RELEASED, 0o640)
    assert said == [
        f"{file}: as released with megatron-core 1.2.3; the patch fits\n",
        f"{file}: 2 lines put in\n",
        f"{file}: patched already, nothing to do\n",
        f"{file}: patched; `megatron-energy patch revert` gives the released file back\n",
        f"{file}: as released with megatron-core 1.2.3 again\n",
        f"{file}: not patched, nothing to do\n",
        f"{file}: as released with megatron-core 1.2.3; the patch fits\n",
    ]
    assert os.listdir(file.parent) == ["schedules.py"]


def test_the_patches_are_listed(shell: Shell) -> None:
    first, second = shell.text("patch", "list").splitlines()
    assert first == f"megatron-core 1.2.3: 2 lines into {TARGET} (SHA-256 {digest(RELEASED)[:12]}...)"
    assert second.startswith("megatron-core 1.3.0: 1 lines into ")


@pytest.mark.parametrize("action", ["verify", "apply", "revert"])
def test_a_changed_file_is_left_alone(shell: Shell, site: Path, action: str) -> None:
    for content in (RELEASED + b"# mine\n", EDITED + b"# mine\n", b""):
        (site / TARGET).write_bytes(content)
        assert shell.complaint("patch", action, "--site", site) == (
            f"{site / TARGET} is neither as megatron-core 1.2.3 was released nor as the patch makes it (SHA-256 "
            f"{digest(content)[:12]}..., not {digest(RELEASED)[:12]}... or {digest(EDITED)[:12]}...): put the released file back; "
            "training needs no patch"
        )
        assert (site / TARGET).read_bytes() == content


@pytest.mark.parametrize(
    ("version", "called"), [(("9", "0", "1", "rc0"), "9.0.1rc0"), (("1", "2", "3", "rc1"), "1.2.3rc1"), (("?", "0", "0", ""), "")]
)
def test_an_unknown_version_is_named(shell: Shell, tmp_path: Path, version: tuple[str, str, str, str], called: str) -> None:
    site = make_site(tmp_path.resolve() / "site", b"other\n", version)
    assert shell.complaint("patch", "apply", "--site", site) == (
        f"{site / TARGET} is not as any megatron-core with a patch (1.2.3, 1.3.0) was released, nor as the patch makes it: it was changed, "
        f"or megatron-core {called or 'of this unknown version'} has none; training needs no patch"
    )


def test_what_counts_is_the_content_not_the_version(shell: Shell, tmp_path: Path) -> None:
    site = make_site(tmp_path / "site", RELEASED, ("1", "2", "2", ""))
    assert "as released with megatron-core 1.2.3; the patch fits" in shell.text("patch", "verify", "--site", site)


@pytest.mark.parametrize("inside", ["", "megatron", "nowhere"])
def test_a_folder_without_megatron_is_told(shell: Shell, site: Path, tmp_path: Path, inside: str) -> None:
    folder = site / inside if inside else tmp_path
    assert shell.complaint("patch", "verify", "--site", folder) == (
        f"no {TARGET} in {folder}: give --site the folder that holds megatron/, such as a clone of Megatron-LM"
    )


def test_a_folder_in_the_file_s_place_is_told(shell: Shell, site: Path) -> None:
    (site / TARGET).unlink()
    (site / TARGET).mkdir()
    assert shell.complaint("patch", "apply", "--site", site) == f"{site / TARGET} cannot be read: Is a directory"


@pytest.mark.parametrize("call", ["mkstemp", "replace"])
def test_a_tree_that_cannot_be_written_is_unchanged(shell: Shell, site: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(30, "Read-only file system")

    owner = patching.tempfile if call == "mkstemp" else patching.os
    with monkeypatch.context() as broken:
        broken.setattr(owner, call, refuse)
        assert shell.complaint("patch", "apply", "--site", site) == (
            f"{site / TARGET} cannot be written (Read-only file system) and is unchanged: run this as its owner, or with --site on a "
            "copy of megatron/ that stands first on PYTHONPATH"
        )
    assert (site / TARGET).read_bytes() == RELEASED
    assert os.listdir((site / TARGET).parent) == ["schedules.py"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_of_somebody_else_s(shell: Shell, site: Path) -> None:
    (site / TARGET).parent.chmod(0o555)
    assert "cannot be written (Permission denied) and is unchanged" in shell.complaint("patch", "apply", "--site", site)
    (site / TARGET).parent.chmod(0o755)


def test_an_interrupted_write_leaves_the_old_file(shell: Shell, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(handle: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(patching.os, "fsync", interrupt)
        assert patching.find(site).patched is False
        with pytest.raises(KeyboardInterrupt):
            patching.apply(patching.find(site))
    assert (site / TARGET).read_bytes() == RELEASED
    assert os.listdir((site / TARGET).parent) == ["schedules.py"]
    assert "2 lines put in" in shell.text("patch", "apply", "--site", site)


def test_what_a_killed_process_left_is_removed_and_a_running_one_s_is_not(shell: Shell, site: Path) -> None:
    left, running, other = (
        (site / TARGET).with_name(name) for name in (".schedules.py.energy-1", ".schedules.py.energy-2", ".schedules.py")
    )
    for file in (left, running, other):
        file.touch()
    for file in (left, other):
        os.utime(file, (0, 0))
    shell.text("patch", "apply", "--site", site)
    assert sorted(os.listdir(left.parent)) == [".schedules.py", ".schedules.py.energy-2", "schedules.py"]


def test_bytecode_that_python_would_take_unchecked_is_removed(shell: Shell, site: Path) -> None:
    """Python compares time and size of a source, but not for files that were compiled to be trusted, as some images do."""
    file = site / TARGET
    others = file.with_name("other.py")
    others.touch()
    for one in (file, others):
        py_compile.compile(str(one), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    kept = Path(py_compile.importlib.util.cache_from_source(str(others)))  # type: ignore[attr-defined]
    assert len(list(kept.parent.iterdir())) == 2
    shell.text("patch", "apply", "--site", site)
    assert list(kept.parent.iterdir()) == [kept]


def test_links_are_followed_and_hard_links_are_broken(shell: Shell, site: Path, tmp_path: Path) -> None:
    """A package cache that shares its file with the environment keeps the released one."""
    cache, clone = tmp_path / "cache.py", tmp_path / "clone"
    os.link(site / TARGET, cache)
    clone.mkdir()
    (clone / "megatron").symlink_to(site / "megatron")
    assert shell.text("patch", "apply", "--site", clone) == f"{site / TARGET}: 2 lines put in\n"
    assert ((site / TARGET).read_bytes(), cache.read_bytes()) == (EDITED, RELEASED)


def test_without_a_site_it_is_where_python_finds_megatron(
    shell: Shell, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an import would find it, in whichever folder of the namespace package it is; and nothing is imported."""
    (tmp_path / "first" / "megatron" / "elsewhere").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(site)])
    assert shell.text("patch", "verify") == f"{site / TARGET}: as released with megatron-core 1.2.3; the patch fits\n"
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first")])
    monkeypatch.setattr(sys, "meta_path", [SimpleNamespace(), *sys.meta_path])
    assert shell.complaint("patch", "verify") == (
        "this Python finds no megatron-core: give --site the folder that holds megatron/, such as a clone of Megatron-LM"
    )


def test_a_damaged_installation_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "megatron_energy" / "__init__.py"
    monkeypatch.setattr(patching.megatron_energy, "__file__", str(package))
    shell = Shell(capsys)
    assert shell.complaint("patch", "list") == "this installation of megatron-energy holds no patches: install it again"
    (tmp_path / "patches").mkdir()
    broken = tmp_path / "patches" / "megatron-core-1.patch"
    broken.write_text("version: 1\n")
    expected = f"{broken}: damaged (no file is named above its hunks): install megatron-energy again"
    assert shell.complaint("patch", "list") == expected
