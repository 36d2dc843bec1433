"""Starting clockd, its signals, and stopping it.

Whatever way it ends, the GPUs are given back: on SIGTERM before it exits, after a SIGKILL by the next start (or by
``clockd restore``), from the state directory.
"""

import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from megatron_energy.clockd import paths
from megatron_energy.clockd.audit import Audit
from megatron_energy.clockd.controls import Controls, Device, restore_for
from megatron_energy.clockd.hardware import Hardware, all_hardware, unambiguous_numbers
from megatron_energy.clockd.lending import Lending
from megatron_energy.clockd.pidfd import open_pidfd
from megatron_energy.clockd.rules import Range, Rules, load_or_deny
from megatron_energy.clockd.saved import StateDirectory
from megatron_energy.clockd.server import Server
from megatron_energy.clockd.service import Service
from megatron_energy.clockd.slurm import job_gpus_from_prolog
from megatron_energy.clockd.systemd import notify
from megatron_energy.errors import UserError
from megatron_energy.gpus.errors import GpuError
from megatron_energy.gpus.library import is_emulated

STOPPING_S = 10.0  # how long a restore that fails is tried again before clockd stops without it


@dataclass(frozen=True)
class Options:
    """Where clockd's files are."""

    rules: Path = paths.RULES
    socket: Path = paths.SOCKET
    state_directory: Path = paths.STATE_DIRECTORY
    audit_log: Path | None = paths.AUDIT_LOG


class Daemon:
    """clockd, from its start until it is told to stop. Raises UserError where it cannot start."""

    def __init__(self, options: Options) -> None:
        os.umask(0o077)
        require_pidfds()
        self._options = options
        self._state = StateDirectory(options.state_directory)
        self._audit = Audit(options.audit_log)
        silent: dict[int, str] = {}
        gpus = all_hardware(silent)
        numbers = unambiguous_numbers(gpus.values())
        self._gpus = gpus
        rules = self._load_rules()
        self._controls = Controls(gpus, self._state, rules.site_clocks_mhz, self._audit.write, time.monotonic)
        self._restore_what_was_left()
        self._lending = Lending(
            self._controls,
            rules,
            lambda r: job_gpus_from_prolog(r.slurm_jobs, numbers),
            self._audit,
            lambda uuid: gpus[uuid].split(),
            time.monotonic,
        )
        listener = bind(options.socket, rules)
        self._server = Server(listener, Service(self._lending, is_emulated()), self._lending, time.monotonic)
        self._signals: list[int] = []
        self._audit.write("started", pid=os.getpid(), gpus=list(gpus), silent=silent, rules=len(rules.rules), unusable=rules.unusable)
        for index, reason in silent.items():
            _say(f"GPU {index} does not answer and is not lent: {reason}; restart clockd when it is back")
        kind = "emulated GPUs" if is_emulated() else "GPUs"
        _say(f"{len(gpus)} {kind}, {len(rules.rules)} rules, listening on {options.socket}")

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT. Returns the exit status: 0, or 1 where a GPU could not be restored."""
        wake, wakened = socket.socketpair()
        wake.setblocking(False)
        wakened.setblocking(False)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, _frame: self._signals.append(number))
        self._server.watch(wakened, lambda: _drain(wakened))
        notify("READY=1")
        while not {signal.SIGTERM, signal.SIGINT} & set(self._signals):
            if signal.SIGHUP in self._signals:
                self._signals.clear()
                self._reload()
            self._server.step()
            notify("WATCHDOG=1")
        return self._stop()

    def _load_rules(self) -> Rules:
        rules = rules_for(self._options.rules, self._gpus, self._state.site_mhz)
        if rules.unusable is not None:
            _say(f"everything is denied: {rules.unusable}")
        self._state.site_mhz = rules.site_clocks_mhz
        return rules

    def _reload(self) -> None:
        notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        self._audit.reopen()
        rules = self._load_rules()
        self._lending.use(rules)
        try:
            set_mode(self._options.socket, rules)
        except OSError as error:
            _say(f"the socket keeps its mode: {error}")
        self._audit.write("reloaded", rules=len(rules.rules), unusable=rules.unusable)
        _say(f"{len(rules.rules)} rules")
        notify("READY=1")

    def _restore_what_was_left(self) -> None:
        if self._state.from_earlier_boot:
            self._audit.write("rebooted")
        left = self._controls.changed()
        if left:
            self._audit.write("found-unrestored", gpus=list(left))
        for uuid in left:
            self._controls.restore(uuid)

    def _stop(self) -> int:
        notify("STOPPING=1")
        self._options.socket.unlink(missing_ok=True)
        self._server.close()
        self._lending.end_all("clockd stops")
        unrestored = restore_for(self._controls, STOPPING_S)
        self._audit.write("stopped", unrestored=unrestored)
        self._audit.close()
        self._state.close()
        for uuid, reason in unrestored.items():
            _say(f"{uuid} is NOT restored: {reason}")
        return 1 if unrestored else 0


def rules_for(path: Path, gpus: Mapping[str, Device], last_site_mhz: Range | None) -> Rules:
    """The rules of ``path`` for these GPUs; see :func:`load_or_deny`.

    A GPU without a clock in the site's range could not be restored to it, so such rules cannot be used either.
    """
    rules = load_or_deny(path, last_site_mhz)
    site_mhz = rules.site_clocks_mhz
    if site_mhz is None:
        return rules
    for uuid, gpu in gpus.items():
        try:
            supported_mhz = gpu.clocks_mhz()
        except GpuError:  # it shows when the GPU is used
            continue
        if not any(mhz in site_mhz for mhz in supported_mhz):
            reason = f"{path}: [site] clocks_mhz: {uuid} has no clock in it, its clocks are {supported_mhz[-1]} to {supported_mhz[0]} MHz"
            return Rules(site_clocks_mhz=None if last_site_mhz == site_mhz else last_site_mhz, unusable=reason)
    return rules


def restore_without_daemon(options: Options, uuids: tuple[str, ...] | None) -> tuple[list[str], dict[str, str]]:
    """What ``clockd restore`` does where no clockd runs.

    Args:
        options: where clockd's files are.
        uuids: GPUs to restore whatever the state directory says; None: those that it says were changed.

    Returns:
        GPUs that were restored, and those that could not be, with the reason.

    Raises UserError: clockd does run, or there is no driver, or no such GPU.
    """
    state = StateDirectory(options.state_directory)
    gpus: dict[str, Hardware] = all_hardware({})
    rules = rules_for(options.rules, gpus, state.site_mhz)
    audit = Audit(options.audit_log)
    controls = Controls(gpus, state, rules.site_clocks_mhz, audit.write, time.monotonic)
    wanted = controls.changed() if uuids is None else uuids
    unknown = [uuid for uuid in wanted if uuid not in gpus]
    if unknown and uuids is not None:
        raise UserError(f"no GPU {unknown[0]} on this host: run `megatron-energy doctor` for the UUIDs there are")
    for uuid in wanted:
        controls.restore(uuid, clocks_anyway=uuids is not None)
    unrestored = restore_for(controls, STOPPING_S)
    audit.close()
    state.close()
    return [uuid for uuid in wanted if uuid not in unrestored], unrestored


def require_pidfds() -> None:
    """Raise UserError on a kernel on which the end of a client's process cannot be seen."""
    try:
        os.close(open_pidfd(os.getpid()))
    except OSError as error:
        raise UserError(f"clockd needs Linux 5.3 or later, without a filter on pidfd_open ({error.strerror})") from error


def bind(path: Path, rules: Rules) -> socket.socket:
    """A listening socket at ``path``, in place of one that nobody listens to. Raises UserError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        for folder in reversed(path.parents):
            if not folder.exists():
                folder.mkdir()
                folder.chmod(0o755)  # whatever the umask, so that users reach the socket
        _remove_stale(path)
        listener.bind(str(path))  # mode 0600 by the umask, so that nobody connects before the mode is right
        listener.listen(256)
        set_mode(path, rules)
    except OSError as error:
        listener.close()
        raise UserError(f"cannot listen on {path}: {error.strerror or error}") from error
    return listener


def set_mode(path: Path, rules: Rules) -> None:
    """Give the socket the group and mode that the rules want."""
    if rules.socket_gid is not None:
        os.chown(path, -1, rules.socket_gid)
    path.chmod(rules.socket_mode)


def _remove_stale(path: Path) -> None:
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise UserError(f"{path} is there and is no socket: remove it, or give another --socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise UserError(f"clockd is already listening on {path}")


def _drain(link: socket.socket) -> None:
    try:
        while link.recv(4096):
            pass
    except BlockingIOError:
        pass


def _say(message: str) -> None:
    print(f"clockd: {message}", file=sys.stderr, flush=True)
