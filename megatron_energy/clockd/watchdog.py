"""Where no clockd runs but the trainer may set clocks itself: a small process that gives the GPUs back when the trainer ends.

The trainer starts it, holds a pipe to it, and names each GPU *before* its first change. The watchdog restores when the
pipe closes or the trainer's process ends (told by a pidfd, since a forked child keeps the pipe open). It is in a session of
its own, so what kills the trainer's process group does not reach it.

What it cannot do: whoever kills every process of a control group at once (Slurm with proctrack/cgroup, a container that is
stopped) kills the watchdog as well. Before that they send SIGTERM, upon which it restores at once and the trainer must set
no clocks any more (:attr:`Watchdog.alive`). clockd has no such limit.
"""

import json
import os
import select
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from megatron_energy.clockd.pidfd import open_pidfd
from megatron_energy.gpus.errors import GpuError

ANSWER_S = 30.0  # starting Python and NVML takes a second or two on a loaded host
CLOSE_S = 30.0


_PACKAGE = str(Path(__file__).resolve().parents[2])
_PROGRAM = f"""import sys
if sys.path[:1] == [""]:
    del sys.path[0]
sys.path.append({_PACKAGE!r})
from megatron_energy.clockd.watchdog_process import main
sys.exit(main())"""  # imports nothing from the working directory, where users' files may have the names of modules


class WatchdogError(GpuError):
    """The watchdog cannot do its work, so clocks must not be set; one line with the reason."""


class Watchdog:
    """The trainer's side. Belongs to the process that started it; forked children cannot use it.

    Example::

        watchdog = Watchdog()
        watchdog.guard(gpu.uuid)            # before the first clock request
        if watchdog.alive: ...              # before further ones
        watchdog.close()                    # restores

    ``site_mhz``: range that GPUs are restored to; default: not locked. Raises WatchdogError where it does not start.
    """

    def __init__(self, site_mhz: tuple[int, int] | None = None) -> None:
        self._pid = os.getpid()
        self._received = b""
        self._why_ended = ""
        try:
            trainer = open_pidfd(self._pid)  # made here: a pidfd that the child opened might be of another process already
        except OSError as error:
            raise WatchdogError(f"this kernel cannot watch processes (pidfd_open: {error.strerror or error})") from error
        command = [sys.executable, "-c", _PROGRAM, str(trainer)]
        if site_mhz is not None:
            command += [str(mhz) for mhz in site_mhz]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[trainer], start_new_session=True, bufsize=0
            )
        except OSError as error:
            raise WatchdogError(f"the watchdog does not start: {error.strerror or error}") from error
        finally:
            os.close(trainer)
        try:
            self._answer()
        except WatchdogError:
            self._end_process()
            raise

    @property
    def pid(self) -> int:
        """The watchdog's process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the watchdog is on guard; where not, no clock may be set any more. Takes microseconds and never blocks."""
        if not self._why_ended and os.getpid() == self._pid and self._readable(0.0):
            try:
                self._answer()  # on guard it says nothing unasked, so this is its end, or SIGTERM
                self._why_ended = "it said something unasked"
            except WatchdogError as error:
                self._why_ended = str(error)
        return not self._why_ended and os.getpid() == self._pid

    def guard(self, uuid: str, *, power: bool = False) -> None:
        """Have the clocks of a GPU restored (with ``power`` its power limit as well, as it is now). Raises WatchdogError."""
        if not self.alive:
            raise WatchdogError(self._why_ended or "a forked process cannot use its parent's watchdog")
        with suppress(BrokenPipeError):  # it has ended; the answer says why
            os.write(self._stdin, json.dumps({"gpu": uuid, "power": power}).encode() + b"\n")
        self._answer()

    def close(self) -> int:
        """End it; returned when the GPUs are restored. The number of GPUs that could not be restored.

        Raises WatchdogError when it was killed or does not end: then nobody is known to have restored the GPUs.
        """
        if os.getpid() != self._pid:
            raise WatchdogError("a forked process cannot close its parent's watchdog")
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            status = self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            raise WatchdogError(f"the watchdog (process {self.pid}) still tries to restore GPUs after {CLOSE_S:g} s") from None
        finally:
            self._process.stdout.close()
        if status < 0:
            raise WatchdogError(f"the watchdog was killed by signal {-status}: restore the GPUs (nvidia-smi -rgc)")
        return status

    def __enter__(self) -> "Watchdog":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def _stdin(self) -> int:
        assert self._process.stdin is not None
        return self._process.stdin.fileno()

    @property
    def _stdout(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def _readable(self, longest_s: float) -> bool:
        poll = select.poll()
        poll.register(self._stdout, select.POLLIN)
        return bool(self._received) or bool(poll.poll(longest_s * 1000))

    def _answer(self) -> None:
        """Read one answer. Raises WatchdogError for any that is not {"ok": true}, and for none."""
        while b"\n" not in self._received:
            if not self._readable(ANSWER_S):
                raise WatchdogError(f"the watchdog does not answer within {ANSWER_S:g} s")
            more = os.read(self._stdout, 65536)
            if not more:
                raise WatchdogError("the watchdog has ended; what it guarded is restored unless it was killed")
            self._received += more
        line, _, self._received = self._received.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if answer.get("ok") is not True:
            raise WatchdogError(str(answer.get("message")))

    def _end_process(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.kill()
        self._process.wait()
