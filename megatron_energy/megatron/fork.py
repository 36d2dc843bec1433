"""All ranks of a node as forks of one parent that has done the imports: 16 ranks start in seconds and share their code's memory."""

import atexit
import contextlib
import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from megatron_energy.errors import UserError

POLL_S = 0.05
GRACE_S = 2.0  # for the other ranks after the first failure, before SIGTERM and again before SIGKILL
TAIL_LINES = 25
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True)
class Ranks:
    """The ranks to start on this node.

    Attributes:
        count: ranks here.
        world_size: ranks of the job.
        first: rank of the first one here.
        address: host of rank 0.
        port: its port, for the process group's store.
        logs: directory for the output of the ranks that are not shown: all but the last one here.
    """

    count: int
    world_size: int
    first: int
    address: str
    port: int
    logs: Path

    def environment(self, local: int) -> dict[str, str]:
        """What torchrun would set for the rank with this index on the node."""
        return {
            "RANK": str(self.first + local),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(local),
            "LOCAL_WORLD_SIZE": str(self.count),
            "GROUP_RANK": str(self.first // self.count),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
        }

    def log(self, local: int) -> Path | None:
        """Where that rank's stdout and stderr go; None: to ours."""
        return None if local == self.count - 1 else self.logs / f"rank-{self.first + local}.log"


def free_port() -> int:
    """A TCP port that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def run(ranks: Ranks, main: Callable[[], None]) -> int:
    """Fork the ranks, run ``main`` in each, wait for all.

    The first rank that fails ends the others; its last lines are printed. SIGINT and SIGTERM go to every rank, a second one
    kills them.

    Returns:
        Exit status: 0, or that of the first rank that failed (128 + n where signal n ended it).
    """
    ranks.logs.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    group = _Group(ranks, os.pipe())
    with group.forwarded_signals():
        for local in range(ranks.count):
            pid = os.fork()
            if pid == 0:
                _child(group, local, main)
            group.pids[pid] = local
        return group.wait()


@dataclass
class _Group:
    """The running ranks, by process id."""

    ranks: Ranks
    failures: tuple[int, int]  # a pipe: ranks write their index when they fail, so that the first cause comes first
    pids: dict[int, int] = field(default_factory=dict)
    signals: int = 0

    @contextlib.contextmanager
    def forwarded_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._forward) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        self.signals += 1
        self.send(signal.SIGKILL if self.signals > 1 else signal.Signals(number))

    def send(self, number: signal.Signals) -> None:
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def reap(self) -> list[tuple[int, int]]:
        """(rank on this node, exit status) of the ranks that have ended since the last call."""
        ended = []
        for pid, local in list(self.pids.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del self.pids[pid]
                code = os.waitstatus_to_exitcode(status)
                ended.append((local, code if code >= 0 else 128 - code))
        return ended

    def wait(self) -> int:
        """Wait for all ranks; see :func:`run`."""
        while self.pids:
            failed = [(local, code) for local, code in self.reap() if code != 0]
            if failed:
                failed += self._end()
                cause = self._first_cause(failed)
                self._report(*cause, shown=self.ranks.count - 1 in (local for local, _ in failed))
                return cause[1]
            time.sleep(POLL_S)
        return 0

    def _end(self) -> list[tuple[int, int]]:
        """End the ranks that are left; returns those that ended by themselves with an error."""
        failed = self._drain()
        self.send(signal.SIGTERM)
        self._drain()
        self.send(signal.SIGKILL)
        while self.pids:
            self.reap()
            time.sleep(POLL_S)
        return failed

    def _first_cause(self, failed: list[tuple[int, int]]) -> tuple[int, int]:
        """The rank that failed first: others may have ended earlier, or in the same moment, because they lost it."""
        os.close(self.failures[1])
        with os.fdopen(self.failures[0]) as told:
            order = [int(line) for line in told]
        codes = dict(failed)
        return next(((local, codes[local]) for local in order if local in codes), failed[0])

    def _drain(self) -> list[tuple[int, int]]:
        """Failures within the grace period."""
        failed = []
        until = time.monotonic() + GRACE_S
        while self.pids and time.monotonic() < until:
            failed += [(local, code) for local, code in self.reap() if code != 0]
            time.sleep(POLL_S)
        return failed

    def _report(self, local: int, code: int, *, shown: bool) -> None:
        """Say which rank failed, with its last lines unless they were shown; nothing after a user's mistake, which every rank reports."""
        if self.signals or (code == 2 and shown):
            return
        rank, log = self.ranks.first + local, self.ranks.log(local)
        how = f"was ended by signal {code - 128}" if code > 128 else f"failed with exit status {code}"
        if log is None:
            print(f"megatron_energy.run: rank {rank} {how}", file=sys.stderr)
            return
        lines = log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        print(f"megatron_energy.run: rank {rank} {how}; its last lines:", *lines, sep="\n", file=sys.stderr)


def _child(group: _Group, local: int, main: Callable[[], None]) -> None:
    """Become that rank; never returns."""
    ranks = group.ranks
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setpgid(0, 0)  # a terminal's Ctrl-C reaches the parent alone, which forwards it
    _die_with_parent()
    os.environ.update(ranks.environment(local))
    log = ranks.log(local)
    if log is not None:
        descriptor = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
    code = 1
    try:
        code = exit_status(main)
    finally:
        if sys.exc_info()[0] is not None:
            sys.excepthook(*sys.exc_info())
        if code:
            os.write(group.failures[1], b"%d\n" % local)
        atexit._run_exitfuncs()  # os._exit skips them; writers flush there
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def exit_status(main: Callable[[], None]) -> int:
    """Run ``main``: the exit status that the interpreter would give, with the messages on stderr. Other exceptions pass."""
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


def _die_with_parent() -> None:
    """Ask the kernel for SIGTERM when the parent dies, even by SIGKILL."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
