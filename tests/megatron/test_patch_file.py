"""Insertion-only patches on files small enough to patch by hand."""

import subprocess
from pathlib import Path

import pytest

from megatron_energy.megatron.patch_file import Insertion, PatchFileError, between, digest, parse

RELEASED = b"one\ntwo\nthree\n"
EDITED = b"zero\none\n\ntwo\nthree\n+four\nfive\n"
TEXT = f"""version: 1.2.3
target: some/file.py
sha256: {digest(RELEASED)}
patched-sha256: {digest(EDITED)}
--- a/some/file.py
+++ b/some/file.py
@@ -0,0 +1,1 @@
+zero
@@ -1,0 +3,1 @@
+
@@ -3,0 +6,2 @@
++four
+five
"""


def test_a_patch_is_what_the_files_differ_by() -> None:
    assert between(RELEASED, EDITED, "1.2.3", "some/file.py") == TEXT


def test_a_patch_is_read_applied_and_taken_out() -> None:
    patch = parse(TEXT)
    assert (patch.version, patch.target, patch.inserted_lines) == ("1.2.3", "some/file.py", 4)
    assert patch.insertions == (Insertion(0, (b"zero",)), Insertion(1, (b"",)), Insertion(3, (b"+four", b"five")))
    assert patch.applied_to(RELEASED) == EDITED
    assert patch.taken_out_of(EDITED) == RELEASED


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\n\n"])
def test_every_end_of_a_file_comes_back(end: bytes) -> None:
    released, edited = b"one\x0c\r\n\xc3\xa9" + end, b"one\x0c\r\nnew\n\xc3\xa9" + end
    patch = parse(between(released, edited, "1", "f"))
    assert (patch.applied_to(released), patch.taken_out_of(edited)) == (edited, released)


def test_other_content_is_refused() -> None:
    patch = parse(TEXT)
    for refused in (patch.applied_to, patch.taken_out_of):
        with pytest.raises(PatchFileError, match=r"^it is for another some/file\.py$"):
            refused(RELEASED + b"# mine\n")


def test_a_patch_that_does_not_keep_its_promise_is_refused() -> None:
    patch = parse(TEXT.replace("+five", "+six"))
    with pytest.raises(PatchFileError, match=r"^its insertions do not give"):
        patch.applied_to(RELEASED)


@pytest.mark.parametrize("edited", [b"one\nthree\n", b"one\nTWO\nthree\n", b""])
def test_changed_and_left_out_lines_make_no_patch(edited: bytes) -> None:
    with pytest.raises(PatchFileError, match=r"line \d was changed or left out: a patch only inserts lines"):
        between(RELEASED, edited, "1.2.3", "some/file.py")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("sha256: ", "sha: ", "it does not say 'sha256'"),
        ("+++ b", "=== b", "no file is named above its hunks"),
        ("@@ -1,0 +3,1 @@\n+\n", "@@ -1,1 +3,1 @@\n-one\n+\n", "is no head of a hunk that only inserts"),
        ("@@ -1,0 +3,1 @@", "@@ -1,0 +4,1 @@", "does not hold what it says"),
        ("@@ -1,0 +3,1 @@\n+\n", "@@ -1,0 +3,1 @@\n two\n", "does not hold what it says"),
        ("+five\n", "", "does not hold what it says"),
    ],
)
def test_other_texts_are_no_patches(old: str, new: str, reason: str) -> None:
    assert old in TEXT
    with pytest.raises(PatchFileError, match=reason):
        parse(TEXT.replace(old, new, 1))


def test_git_applies_it_to_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "file.py").write_bytes(RELEASED)
    (tmp_path / "one.patch").write_text(TEXT)
    for way, expected in (([], EDITED), (["-R"], RELEASED)):
        subprocess.run(["git", "apply", "--unidiff-zero", *way, "one.patch"], cwd=tmp_path, check=True)
        assert (tmp_path / "some" / "file.py").read_bytes() == expected
