"""All ranks of a node as forks of one parent that has done the imports: 16 ranks start in seconds and share their code's memory."""

import atexit
import contextlib
import ctypes
import dataclasses
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
from megatron_energy.megatron.fork_report import report_failure
from megatron_energy.megatron.stopping import STOP_SIGNALS, Stopping

POLL_S = 0.05
GRACE_S = 2.0  # for the other ranks after the first failure, before SIGTERM
CLOSE_S = 20.0  # from there until SIGKILL: for the report of what was measured
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

    The first rank that fails ends the others; its last lines are printed. SIGINT, SIGTERM and SIGHUP go to every rank, which ends as
    if its script had called sys.exit; a second one kills them.

    Returns:
        Exit status: 0; 128 + n after signal n, unless every rank ended well; else that of the first rank that failed (128 + n where
        signal n ended it).

    Raises:
        UserError: the host cannot hold so many processes.
    """
    ranks.logs.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    group = _Group(ranks, os.pipe())
    with group.forwarded_signals():
        for local in range(ranks.count):
            group.start(local, main)
        if group.signals:  # those that started after it have not had it
            group.send(group.signals[0])
        return group.wait()


@dataclass(frozen=True)
class _Failure:
    """A rank that did not end well.

    Attributes:
        local: index on this node.
        code: exit status; 128 + n where signal n ended it.
        earliest_s: when it can have failed at the earliest, monotonic.
    """

    local: int
    code: int
    earliest_s: float


@dataclass
class _Group:
    """The running ranks, by process id."""

    ranks: Ranks
    failures: tuple[int, int]  # a pipe: ranks write their index and the time when they fail, which may be long before they end
    pids: dict[int, int] = field(default_factory=dict)
    signals: list[signal.Signals] = field(default_factory=list)
    reaped_s: float = field(default_factory=time.monotonic)

    def start(self, local: int, main: Callable[[], None]) -> None:
        """Fork one rank."""
        try:
            pid = os.fork()
        except OSError as error:
            self.send(signal.SIGKILL)
            raise UserError(f"rank {local} of {self.ranks.count} cannot be started ({error.strerror}): use fewer ranks") from error
        if pid == 0:
            try:
                _child(self, local, main)
            finally:
                os._exit(1)  # whatever happens there, a rank never goes on here
        self.pids[pid] = local

    @contextlib.contextmanager
    def forwarded_signals(self) -> Iterator[None]:
        """Stop signals go to the ranks. SIGHUP stays ignored under nohup; SIGINT does not: background jobs of scripts ignore it."""
        wanted = [number for number in STOP_SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
        before = {number: signal.signal(number, self.forward) for number in wanted}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def forward(self, number: int, _frame: FrameType | None) -> None:
        """The first signal goes to the ranks; a second one kills them."""
        self.signals.append(signal.Signals(number))
        self.send(signal.SIGKILL if len(self.signals) > 1 else self.signals[0])

    def send(self, number: signal.Signals) -> None:
        """Send a signal to every running rank."""
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def reap(self) -> list[_Failure]:
        """Failures among the ranks that have ended since the last call."""
        failed, before_s = [], self.reaped_s
        self.reaped_s = time.monotonic()
        for pid, local in list(self.pids.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del self.pids[pid]
                code = os.waitstatus_to_exitcode(status)
                if code:
                    failed.append(_Failure(local, code if code > 0 else 128 - code, before_s))
        return failed

    def wait(self) -> int:
        """Wait for all ranks; see :func:`run`."""
        while self.pids:
            failed = self.reap()
            if failed:
                failed += self._end()
                cause = self._first_cause(failed)
                self._report(cause, shown=self.ranks.count - 1 in (failure.local for failure in failed))
                return self._status_of_signals() or cause.code
            time.sleep(POLL_S)
        return 0

    def _status_of_signals(self) -> int:
        """128 + n after signal n, or after the SIGKILL that follows a second one; 0: there was none."""
        return 0 if not self.signals else 128 + (self.signals[0] if len(self.signals) == 1 else signal.SIGKILL)

    def _end(self) -> list[_Failure]:
        """End the ranks that are left; returns those that ended by themselves with an error."""
        failed = self._drain(GRACE_S)
        self.send(signal.SIGTERM)
        self._drain(CLOSE_S)
        self.send(signal.SIGKILL)
        while self.pids:
            self.reap()
            time.sleep(POLL_S)
        return failed

    def _first_cause(self, failed: list[_Failure]) -> _Failure:
        """The rank that failed first: others may have ended earlier, or in the same moment, because they lost it.

        A rank that a signal ended could not tell when: it counts from the last time that it was seen running.
        """
        os.set_blocking(self.failures[0], False)  # children of ranks may still hold the other end
        with contextlib.suppress(BlockingIOError):
            told = dict(line.split() for line in os.read(self.failures[0], 1 << 20).decode().splitlines())
            failed = [dataclasses.replace(one, earliest_s=float(told[str(one.local)])) if str(one.local) in told else one for one in failed]
        return min(failed, key=lambda one: one.earliest_s)

    def _drain(self, seconds: float) -> list[_Failure]:
        """Failures within that time."""
        failed = []
        until = time.monotonic() + seconds
        while self.pids and time.monotonic() < until:
            failed += self.reap()
            time.sleep(POLL_S)
        return failed

    def _report(self, cause: _Failure, *, shown: bool) -> None:
        """Say which rank failed, with its last lines unless they were shown; nothing after a user's mistake, which every rank reports."""
        if self.signals or (cause.code == 2 and shown):
            return
        report_failure(self.ranks.first + cause.local, cause.code, self.ranks.log(cause.local))


def _child(group: _Group, local: int, main: Callable[[], None]) -> None:
    """Become that rank; never returns."""
    stopping = Stopping()
    stopping.install(instead_of=group.forward)
    os.setpgid(0, 0)  # a terminal's Ctrl-C reaches the parent alone, which forwards it
    die_with_parent()
    _be_ended_before_the_parent()
    os.environ.update(group.ranks.environment(local))
    log = group.ranks.log(local)
    if log is not None:
        descriptor = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
    code = 1
    try:
        code = exit_status(main)
    finally:
        stopping.closing = True
        failed = sys.exc_info()
        if failed[0] is not None:
            # Whoever lost its peers before it could look at the signal failed because of that signal.
            code = stopping.exit_status(1)
            if stopping.number is None:
                sys.excepthook(*failed)
        if code:
            os.write(group.failures[1], b"%d %f\n" % (local, time.monotonic()))
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


def die_with_parent() -> None:
    """Ask the kernel for SIGTERM when the parent dies, even by SIGKILL."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))


def _be_ended_before_the_parent() -> None:
    """When memory runs out, the kernel shall end a rank, so that the parent can say so."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")
