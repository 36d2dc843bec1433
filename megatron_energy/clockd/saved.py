"""What has to be undone, on disk before it is done.

One file, ``clockd-state.json``, says of each GPU that clockd changed what it was before. It is written (whole, flushed, then moved
into place) before the first change, so a clockd that starts after a kill, at any moment, knows what to restore. After
a reboot the driver has forgotten our changes, and the file of the earlier boot is put away.
"""

import fcntl
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from megatron_energy.clockd.rules import Range
from megatron_energy.errors import UserError

VERSION = 1
STATE_FILE = "clockd-state.json"
LOCK_FILE = "clockd-lock"


@dataclass(frozen=True, slots=True)
class Saved:
    """One changed GPU.

    Attributes:
        clocks: whether its clocks were locked.
        power_limit_mw: its power limit before our first change; None: not changed.
        own_limits_mw: limits that we set since. Another value in force is somebody else's doing. Empty where not known.
    """

    clocks: bool = False
    power_limit_mw: int | None = None
    own_limits_mw: tuple[int, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to restore."""
        return not self.clocks and self.power_limit_mw is None


class Store(Protocol):
    """Where it is kept."""

    def get(self, uuid: str) -> Saved:
        """What is known of a GPU; an empty one when nothing was changed."""

    def put(self, uuid: str, saved: Saved) -> None:
        """Keep it. Raises OSError when it cannot be kept; then nothing must be changed."""

    def uuids(self) -> tuple[str, ...]:
        """GPUs with something to restore."""


class Memory:
    """Keeps it for the life of this process only."""

    def __init__(self, saved: Mapping[str, Saved] | None = None) -> None:
        self._saved: dict[str, Saved] = dict(saved or {})

    def get(self, uuid: str) -> Saved:
        """See :class:`Store`."""
        return self._saved.get(uuid, Saved())

    def put(self, uuid: str, saved: Saved) -> None:
        """See :class:`Store`."""
        if saved.empty:
            self._saved.pop(uuid, None)
        else:
            self._saved[uuid] = saved

    def uuids(self) -> tuple[str, ...]:
        """See :class:`Store`."""
        return tuple(self._saved)


class StateDirectory(Memory):
    """Keeps it on disk. One process at a time has a state directory open.

    Args:
        path: the folder, made with mode 0700 where it does not exist.
        boot_id: the running kernel's.

    ``site_mhz`` is the site's clock range, kept with the rest: needed where the rules cannot be read after a restart.

    Raises UserError: the folder belongs to others, another clockd has it open, or the state file cannot be understood.
    """

    def __init__(self, path: Path, boot_id: str | None = None) -> None:
        self._path = path
        self._boot_id = boot_id or Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self.from_earlier_boot = False
        self.site_mhz: Range | None = None
        try:
            self._open_folder()
        except OSError as error:
            raise UserError(f"the state directory {path} cannot be used: {error.strerror or error}") from error
        super().__init__(self._load())

    def _open_folder(self) -> None:
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = self._path.stat()
        if facts.st_uid != os.geteuid() or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise UserError(f"the state directory {self._path} must belong to clockd's user, and nobody else may write there (mode 0700)")
        self._lock = os.open(self._path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise UserError(f"clockd is already running with the state directory {self._path}") from None

    def close(self) -> None:
        """Let another process have it."""
        os.close(self._lock)

    def put(self, uuid: str, saved: Saved) -> None:
        """See :class:`Store`; on disk when it returns."""
        before = self.get(uuid)
        if before == saved:
            return
        super().put(uuid, saved)
        try:
            self._write()
        except OSError:
            super().put(uuid, before)
            raise

    def _write(self) -> None:
        content = {
            "version": VERSION,
            "boot_id": self._boot_id,
            "site_mhz": None if self.site_mhz is None else [self.site_mhz.least, self.site_mhz.most],
            "gpus": {uuid: asdict(self.get(uuid)) for uuid in self.uuids()},
        }
        temporary = self._path / f"{STATE_FILE}.new"
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path / STATE_FILE)
        folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _load(self) -> dict[str, Saved]:
        file = self._path / STATE_FILE
        try:
            content: Any = json.loads(file.read_text(encoding="utf-8"))
            if content["version"] != VERSION:
                raise ValueError(f"version {content['version']}")
            saved = {str(uuid): _saved(entry) for uuid, entry in content["gpus"].items()}
            site_mhz = content["site_mhz"]
            self.site_mhz = None if site_mhz is None else Range(int(site_mhz[0]), int(site_mhz[1]))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise UserError(
                f"{file} cannot be understood ({error}): restore the GPUs by hand (nvidia-smi -rgc; nvidia-smi -pl WATTS), then remove it"
            ) from error
        if content["boot_id"] != self._boot_id:
            self.from_earlier_boot = bool(saved)
            file.unlink()
            return {}
        return saved


def _saved(entry: dict[str, Any]) -> Saved:
    limit_mw = entry["power_limit_mw"]
    return Saved(bool(entry["clocks"]), None if limit_mw is None else int(limit_mw), tuple(int(mw) for mw in entry["own_limits_mw"]))
