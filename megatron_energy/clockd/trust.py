"""Files that only an operator can have written.

What clockd reads decides who may control GPUs, so a file that somebody else could have changed is not believed.
"""

import os
import stat
from pathlib import Path

from megatron_energy.errors import UserError

LONGEST_FILE_BYTES = 1 << 20


def read_trusted(path: Path) -> str:
    """The text of ``path``, which must belong to root (or to clockd's own user) and be writable by its owner alone.

    All folders above it are held to the same, sticky ones (as /tmp) excepted, and those above what it links to. Raises UserError
    with the reason.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # not blocked by a FIFO of that name
        with open(descriptor, "rb") as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                raise UserError(f"{path} is not a file")
            _require_operators(facts, str(path), sticky_will_do=False)
            for folder in {*path.absolute().parents, *path.resolve().parents}:
                _require_operators(folder.stat(), f"the folder {folder} of {path}", sticky_will_do=True)
            raw = file.read(LONGEST_FILE_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(raw) > LONGEST_FILE_BYTES:
        raise UserError(f"{path} is longer than {LONGEST_FILE_BYTES} bytes")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8 (byte {error.start})") from error


def _require_operators(facts: os.stat_result, what: str, *, sticky_will_do: bool) -> None:
    if facts.st_uid not in (0, os.geteuid()):
        raise UserError(f"{what} belongs to user {facts.st_uid}: give it to root (chown root)")
    sticky = sticky_will_do and facts.st_mode & stat.S_ISVTX
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not sticky:
        raise UserError(f"{what} can be written by others than its owner: take that away (chmod go-w)")
