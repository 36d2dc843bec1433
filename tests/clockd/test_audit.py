import json
import os
import stat
from pathlib import Path

import pytest

from megatron_energy.clockd.audit import REFUSALS_BURST, Audit
from tests.emulated_gpus import FakeClock
from tests.source_tree import package_files


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_one_object_per_line(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = Audit(path, FakeClock(7.0))
    audit.write("leased", gpus=["GPU-a"], uid=1003)
    audit.write("restored", gpu="GPU-a")
    assert lines(path) == [
        {"time_s": 7.0, "event": "leased", "gpus": ["GPU-a"], "uid": 1003},
        {"time_s": 7.0, "event": "restored", "gpu": "GPU-a"},
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    audit.close()


def test_a_rotated_log(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = Audit(path)
    audit.write("first")
    path.rename(tmp_path / "audit.1")
    audit.reopen()
    audit.write("second")
    assert [line["event"] for line in lines(path)] == ["second"]
    audit.close()


def test_refusals_cannot_fill_the_disk(tmp_path: Path) -> None:
    path, clock = tmp_path / "audit.jsonl", FakeClock()
    audit = Audit(path, clock)
    for _ in range(1000):
        audit.refused(op="lease")
    assert len(lines(path)) == REFUSALS_BURST
    audit.write("leased")  # what is granted is always logged
    clock.now_s += 1.0
    audit.refused(op="lease")
    assert lines(path)[-1] == {"time_s": 1001.0, "event": "refused", "op": "lease", "suppressed_before": 1000 - REFUSALS_BURST}
    audit.close()


def test_a_log_that_cannot_be_written_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    audit = Audit(tmp_path / "no folder" / "audit.jsonl")
    audit.write("leased")
    audit.reopen()
    assert capsys.readouterr().err == f"clockd: {audit.failing}\n"
    assert "cannot be written: No such file or directory" in audit.failing


def test_a_full_disk_stops_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    audit = Audit(Path("/dev/full"))
    audit.write("leased")
    audit.write("leased")
    assert capsys.readouterr().err.count("No space left on device") == 1
    audit.close()


def test_after_a_full_disk_the_log_goes_on_at_a_line_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.jsonl"
    audit, write = Audit(path, FakeClock(7.0)), os.write
    audit.write("first")
    monkeypatch.setattr(os, "write", lambda descriptor, raw: write(descriptor, raw[:10]))  # the last bytes of the disk
    audit.write("torn")
    assert "No space left on device" in audit.failing
    monkeypatch.undo()
    audit.write("second")
    assert audit.failing == ""
    first, torn, second = path.read_text().splitlines()
    assert json.loads(first)["event"] == "first" and len(torn) == 10
    assert json.loads(second) == {"time_s": 7.0, "event": "second", "lost_before": 1}
    path.write_text(path.read_text() + "torn by a kill")
    audit.reopen()
    audit.write("third")
    assert json.loads(path.read_text().splitlines()[-1]) == {"time_s": 7.0, "event": "third"}
    audit.close()


def test_only_the_log_goes_by_the_wall_clock() -> None:
    """Which may jump: a lease that lasted until a time of day would end early, or not at all."""
    users = [path.name for path in package_files() if path.parent.name == "clockd" and "time.time" in path.read_text(encoding="utf-8")]
    assert users == ["audit.py"]


def test_no_log() -> None:
    audit = Audit(None)
    audit.write("leased")
    assert audit.failing == ""
