"""RUN_DIR/control: a running job is dropped to maximum clocks, and brought back, from outside.

The file holds one word, ``drop`` or ``resume``. It outlives the process that reads it: a job that was dropped and starts again, as after a
failure, stays dropped until someone resumes it.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeAlias

from megatron_energy.atomic import write_whole
from megatron_energy.errors import UserError
from megatron_energy.observe.journal import FILE_NAME as JOURNAL
from megatron_energy.observe.run_directory import LOCK

FILE_NAME = "control"
Command: TypeAlias = Literal["drop", "resume"]
COMMANDS: tuple[Command, ...] = ("drop", "resume")


def write_control(run_dir: str | os.PathLike[str], command: Command) -> Path:
    """Tell the job that records into ``run_dir``; returns the file.

    Raises:
        UserError: no run records there, or the file cannot be written.
    """
    folder = Path(run_dir)
    if not any((folder / name).is_file() for name in (LOCK, JOURNAL)):
        raise UserError(f"no run in {folder} (it has no {JOURNAL}): give the --energy-dir of a running job")
    path = folder / FILE_NAME
    try:
        write_whole(path, f"{command}\n")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    return path


class Control:
    """Reads the file; a look costs one stat call while nothing changes.

    Args:
        run_dir: RUN_DIR.
        say: prints one line for the user.
    """

    def __init__(self, run_dir: Path, say: Callable[[str], None]) -> None:
        self.path = run_dir / FILE_NAME
        self._path = str(self.path)  # os.stat takes half the time of Path.stat
        self._say = say
        self._seen: tuple[int, int, int] | None = None
        self._dropped = False

    def dropped(self) -> bool:
        """Whether the job is to run at maximum clocks. A file that is away says no; one that cannot be understood changes nothing."""
        try:
            found = os.stat(self._path)
        except OSError:
            self._seen, self._dropped = None, False
            return False
        seen = (found.st_mtime_ns, found.st_ino, found.st_size)
        if seen != self._seen:
            self._seen = seen
            self._read()
        return self._dropped

    def _read(self) -> None:
        try:
            word = self.path.read_text(encoding="utf-8", errors="replace").strip()
        except OSError as error:
            self._say(f"cannot read {self.path} ({error.strerror}): it changes nothing")
            return
        if word in COMMANDS:
            self._dropped = word == "drop"
        else:
            self._say(f"{self.path} says {word[:20]!r}, neither drop nor resume: it changes nothing")
