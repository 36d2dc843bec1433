"""The audit log: who was given what, who was refused, and what was restored; one JSON object per line.

Single clock changes are not logged (there are tens per second); a lease's last line counts them. Refusals are logged
up to some number per second and counted beyond that, so that nobody can fill the disk.
"""

import errno
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from megatron_energy.clockd.rates import Allowance

REFUSALS_PER_S = 5
REFUSALS_BURST = 100


class Audit:
    """Appends to a file. Where that fails, clockd goes on, since restoring must not depend on a full disk, and says so.

    Args:
        path: the file, made with mode 0600; None: no log.
        clock: seconds since 1970.
    """

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._descriptor = -1
        self._refusals = Allowance(REFUSALS_PER_S, REFUSALS_BURST)
        self._suppressed = 0
        self._lost = 0  # events since the log could last be written
        self._torn = False  # whether the file ends in the middle of a line
        self.failing = ""
        self.reopen()

    def reopen(self) -> None:
        """Open the file anew, after a log rotation."""
        self.close()
        if self._path is None:
            return
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            self.failing = ""
            length = os.fstat(self._descriptor).st_size
            self._torn = length > 0 and os.pread(self._descriptor, 1, length - 1) != b"\n"
        except OSError as error:
            self._fails(error)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def write(self, event: str, **facts: object) -> None:
        """Log one event with its facts (plain types)."""
        if self._descriptor < 0:
            self._lost += 1
            return
        if self._lost:
            facts["lost_before"] = self._lost
        line = json.dumps({"time_s": round(self._clock(), 3), "event": event, **facts}) + "\n"
        raw = (("\n" if self._torn else "") + line).encode()
        try:
            written = os.write(self._descriptor, raw)
        except OSError as error:
            self._lost += 1
            self._fails(error)
            return
        if written < len(raw):
            self._lost, self._torn = self._lost + 1, True
            self._fails(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        else:
            self._lost, self._torn, self.failing = 0, False, ""

    def refused(self, **facts: object) -> None:
        """Log a refusal, unless there were too many lately."""
        if not self._refusals.take(self._clock()):
            self._suppressed += 1
            return
        if self._suppressed:
            facts["suppressed_before"] = self._suppressed
            self._suppressed = 0
        self.write("refused", **facts)

    def _fails(self, error: OSError) -> None:
        reason = f"the audit log {self._path} cannot be written: {error.strerror or error}"
        if reason != self.failing:
            print(f"clockd: {reason}", file=sys.stderr, flush=True)
        self.failing = reason
