"""RUN_DIR: one run at a time, and nothing of an earlier run among the records of a new one."""

import fcntl
import os
import sys
from pathlib import Path

import pytest

from megatron_energy.errors import UserError
from megatron_energy.observe.journal import Journal
from megatron_energy.observe.run_directory import LOCK, RECORDS, RunLock, check_free, earlier_runs, read_job, set_aside
from tests.observe.sample_records import run_summaries


def nothing(line: str) -> None:
    raise AssertionError(line)


def test_a_second_run_is_refused_in_one_line_until_the_first_ends(tmp_path: Path) -> None:
    first = RunLock(tmp_path, nothing)
    for refused in (lambda: RunLock(tmp_path, nothing), lambda: check_free(tmp_path)):
        with pytest.raises(UserError, match=rf"{tmp_path} is in use by another run \(process {os.getpid()} on .*\): .*--energy-dir"):
            refused()
    first.release()
    check_free(tmp_path)
    RunLock(tmp_path, nothing).release()


def test_looking_does_not_lock(tmp_path: Path) -> None:
    check_free(tmp_path / "not there yet")
    RunLock(tmp_path, nothing).release()
    with (tmp_path / LOCK).open() as other:
        fcntl.flock(other, fcntl.LOCK_SH)  # another rank that looks in the same moment
        check_free(tmp_path)


def forked(body: str, tmp_path: Path) -> int:
    """Run a statement in a forked child; its exit status."""
    pid = os.fork()
    if pid == 0:
        try:
            exec(body, {"RunLock": RunLock, "check_free": check_free, "path": tmp_path, "os": os})
        finally:
            os._exit(sys.exc_info()[0] is not None)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_killed_run_leaves_no_lock_and_a_child_of_it_neither(tmp_path: Path) -> None:
    """The run forks a helper that outlives it, and dies by SIGKILL."""
    read, write = os.pipe()
    run = f"lock = RunLock(path, print)\nif os.fork() == 0:\n os.read({read}, 1)\n os._exit(0)\nos.kill(os.getpid(), 9)"
    assert forked(run, tmp_path) == -9
    try:
        RunLock(tmp_path, nothing).release()
    finally:
        os.write(write, b"x")
        os.close(write)
        os.close(read)


def test_a_forked_child_does_not_give_the_lock_away(tmp_path: Path) -> None:
    lock = RunLock(tmp_path, nothing)
    assert forked("pass", tmp_path) == 0
    with pytest.raises(UserError):
        check_free(tmp_path)
    lock.release()


def test_a_directory_that_cannot_be_made_is_left_to_who_writes(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    RunLock(tmp_path / "file", nothing).release()
    assert set_aside(tmp_path / "file") is None


def records(run_dir: Path, text: str) -> None:
    run_dir.mkdir(exist_ok=True)
    for name in RECORDS[1:]:
        (run_dir / name).write_text(text)


def test_an_earlier_runs_records_are_set_aside_run_by_run(tmp_path: Path) -> None:
    assert set_aside(tmp_path) is None
    for number in (1, 2, 10, 11):
        if number == 10:
            (tmp_path / "run-9").mkdir()
        records(tmp_path, f"of {number}")
        (tmp_path / "control").write_text("drop\n")
        assert set_aside(tmp_path) == tmp_path / f"run-{number}"
        assert (tmp_path / f"run-{number}" / "plan.json").read_text() == f"of {number}"
        assert not [name for name in RECORDS if (tmp_path / name).exists()]
    assert [path.name for path in earlier_runs(tmp_path)] == ["run-1", "run-2", "run-9", "run-10", "run-11"]
    assert (tmp_path / "control").read_text() == "drop\n"


def test_what_this_run_reads_stays(tmp_path: Path) -> None:
    records(tmp_path, "x")
    (tmp_path / "link").symlink_to(tmp_path)
    aside = set_aside(tmp_path, [tmp_path / "link" / "plan.json", "elsewhere.csv"])
    assert aside is not None and (aside / "plan.json").read_text() == "x" == (tmp_path / "plan.json").read_text()
    assert not (tmp_path / "profile.csv").exists()


def test_a_file_of_somebody_else_stays(tmp_path: Path) -> None:
    (tmp_path / "iterations.jsonl").write_text('{"schema": "another"}\n')
    assert set_aside(tmp_path) is None


def test_a_job_is_read_across_its_starts(tmp_path: Path) -> None:
    """8 iterations; started again at the checkpoint after 5: the new run's 6, 7 and 8 count, and what it added."""
    whole = run_summaries(3, 8)
    for first, second in ((whole[:8], whole[5:10]), (whole[:8], whole[:2])):
        folder = tmp_path / str(len(second))
        for part in (first, second):
            set_aside(folder) if folder.exists() else None
            with Journal(folder) as journal:
                for summary in part:
                    journal.append(summary)
        assert Journal(folder).read() == second
        assert [s.iteration for s in read_job(folder)] == ([*range(1, 11)] if len(second) == 5 else [1, 2])


def test_starts_in_one_file_are_read_alike(tmp_path: Path) -> None:
    whole = run_summaries(3, 5)
    with Journal(tmp_path) as journal:
        for summary in [*whole[:6], *whole[3:]]:
            journal.append(summary)
    assert Journal(tmp_path).read() == whole
