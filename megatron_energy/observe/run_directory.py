"""RUN_DIR belongs to one run at a time, and what an earlier run left there is set aside, not mixed in.

The lock is the kernel's (flock): it goes with the process that holds it, however that ends.
"""

import contextlib
import errno
import fcntl
import os
import re
import shutil
import socket
import weakref
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TextIO

from megatron_energy.errors import UserError
from megatron_energy.observe.journal import FILE_NAME as ITERATIONS
from megatron_energy.observe.journal import Journal, is_journal, without_repeats
from megatron_energy.records.summary import IterationSummary

LOCK = "lock"
RECORDS = (ITERATIONS, "summary.json", "plan.json", "profile.csv", "timeline.png", "trace.json", "error.txt")
"""What a run writes into RUN_DIR itself, to be set aside by the next one."""


def plan_of(microbatches: int | str) -> str:
    """Name of the file that keeps a plan after the number of microbatches per iteration has changed from that one to another."""
    return f"plan-{microbatches}-microbatches.json"


_ASIDE = re.compile(r"run-([1-9][0-9]*)")
_TAKEN = (errno.EWOULDBLOCK, errno.EACCES, errno.EAGAIN)


def earlier_runs(run_dir: str | os.PathLike[str]) -> list[Path]:
    """The folders ``run-1``, ``run-2``, ... with the records of earlier runs, oldest first."""
    found = [(int(match[1]), path) for path in Path(run_dir).glob("run-*") if (match := _ASIDE.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def set_aside(run_dir: Path, in_use: Collection[str | os.PathLike[str]] = ()) -> Path | None:
    """Move the records of an earlier run into a folder of their own.

    A file that is no record of ours (``iterations.jsonl`` of somebody else) stays.

    Args:
        run_dir: RUN_DIR.
        in_use: files that this run reads: they are copied, and stay as well.

    Returns:
        The folder; None where there was nothing.

    Raises:
        UserError: they cannot be moved.
    """
    names = [*RECORDS, *sorted(path.name for path in run_dir.glob(plan_of("[0-9]*")))]
    found = [path for name in names if (path := run_dir / name).is_file() and (name != ITERATIONS or is_journal(path))]
    if not found:
        return None
    taken = earlier_runs(run_dir)
    aside = run_dir / f"run-{int(taken[-1].name[4:]) + 1 if taken else 1}"
    read = {Path(path).resolve() for path in in_use}
    try:
        aside.mkdir()
        for path in found:
            if path.resolve() in read:
                shutil.copy2(path, aside / path.name)
            else:
                path.rename(aside / path.name)
    except OSError as error:
        raise UserError(f"cannot move an earlier run's records to {aside} ({error.strerror}): choose another --energy-dir") from error
    return aside


def read_job(run_dir: str | Path) -> list[IterationSummary]:
    """The iterations of a job in all its starts: those that were set aside in ``run-1``, ``run-2``, ..., then the last one's.

    What a later run repeats, because it began at an earlier checkpoint, is the later run's.

    Raises:
        UserError: as :meth:`Journal.read`.
    """
    folders = [folder for folder in earlier_runs(run_dir) if (folder / ITERATIONS).is_file()]
    if not folders or (Path(run_dir) / ITERATIONS).is_file():
        folders.append(Path(run_dir))
    return without_repeats(summary for folder in folders for summary in Journal(folder).read())


class RunLock:
    """Holds RUN_DIR for this process. Children that are forked do not hold it.

    Args:
        run_dir: RUN_DIR.
        say: prints one line for the user.

    Raises:
        UserError: another run holds it.
    """

    def __init__(self, run_dir: Path, say: Callable[[str], None]) -> None:
        self._file: TextIO | None = None
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            file = (run_dir / LOCK).open("a+", encoding="utf-8")
        except OSError:
            return  # what is wrong with the directory shows when records are written
        if _lock(file, fcntl.LOCK_EX, run_dir, say):
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            file.flush()
        self._file = file
        _held.add(self)

    def release(self) -> None:
        """Let others have it."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.truncate(0)
            file.close()

    def forget(self) -> None:
        """In a forked child: the parent goes on holding it, and no longer than it lives."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


_held: "weakref.WeakSet[RunLock]" = weakref.WeakSet()


def _forget_all() -> None:
    for lock in list(_held):
        lock.forget()


os.register_at_fork(after_in_child=_forget_all)


def check_free(run_dir: Path) -> None:
    """Refuse a RUN_DIR that another run is using, before anything is started. Any number of processes may ask at once.

    Raises:
        UserError: it is in use.
    """
    try:
        file = (run_dir / LOCK).open(encoding="utf-8")
    except OSError:
        return
    with file:
        _lock(file, fcntl.LOCK_SH, run_dir, lambda _: None)


def _lock(file: TextIO, kind: int, run_dir: Path, say: Callable[[str], None]) -> bool:
    """Whether it is locked now; a file system without locks is said."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _TAKEN:
            say(f"{run_dir} cannot be locked ({error.strerror}): see to it that no other run uses it")
            return False
        file.seek(0)
        holder = file.readline().strip()
        file.close()
        who = f" ({holder})" if holder else ""
        raise UserError(f"{run_dir} is in use by another run{who}: wait for its end, or choose another --energy-dir") from error
    return True
