"""Files that appear as a whole."""

import os
from pathlib import Path

import pytest

from megatron_energy.atomic import write_whole


def test_a_new_file_has_the_permissions_of_any_other_and_replaces_an_older_one(tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    before = os.umask(0o027)
    try:
        write_whole(target, "1")
        write_whole(target, b"\xc3\xa9")
    finally:
        os.umask(before)
    assert target.read_text(encoding="utf-8") == "é"
    assert target.stat().st_mode & 0o777 == 0o640
    assert list(target.parent.iterdir()) == [target]


def test_what_cannot_be_written_leaves_nothing_and_keeps_what_was_there(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "inside").mkdir(parents=True)
    with pytest.raises(OSError):
        write_whole(folder, "a file cannot replace a folder")
    with pytest.raises(OSError):
        write_whole(folder / "inside" / ("x" * 300), "no such name is possible")
    assert list(tmp_path.iterdir()) == [folder] and list(folder.iterdir()) == [folder / "inside"]
