"""Raises before lowers, among the processes of one node.

The driver serves clock requests of a node one after another (46 ms for 8 GPUs, measured on 8x A800-SXM4-80GB). A lower that gets
its turn before a raise costs another GPU's training time; a raise before a lower costs a few joules. So each process announces its
raises in a small shared file, one slot of its own per process, and a lower waits a moment while there are any. An announcement
carries the time when it ends, so that a process killed in the middle holds nobody up for longer than that.
"""

import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_BYTES = 8  # a double: monotonic seconds, the same for all processes of a host


class NodeTurns:
    """The announcements of one node's processes.

    Args:
        path: the shared file; made where there is none.
        slot: this process's number on the node (its local rank).
        slots: number of processes.
        clock, sleep: seconds; the clock must be the same for all processes.
    """

    def __init__(
        self,
        path: Path,
        slot: int,
        slots: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not 0 <= slot < slots:
            raise ValueError(f"slot {slot} of {slots}")
        self._slot, self._clock, self._sleep = slot, clock, sleep
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, slots * _BYTES)  # never shortens what another process has made longer just now
            self._until_s = memoryview(mmap.mmap(descriptor, slots * _BYTES)).cast("d")
        finally:
            os.close(descriptor)

    @contextmanager
    def raising(self, limit_s: float = 0.1) -> Iterator[None]:
        """Announce a raise while the block runs, for ``limit_s`` at most."""
        self._until_s[self._slot] = self._clock() + limit_s
        try:
            yield
        finally:
            self._until_s[self._slot] = 0.0

    def wait_for_raises(self, limit_s: float, poll_s: float = 0.0005) -> float:
        """Wait until no other process announces a raise, ``limit_s`` at most; how long it was, in s."""
        begin_s = now_s = self._clock()
        while now_s - begin_s < limit_s and self._others_raise(now_s):
            self._sleep(poll_s)
            now_s = self._clock()
        return now_s - begin_s

    def _others_raise(self, now_s: float) -> bool:
        return any(until_s > now_s for slot, until_s in enumerate(self._until_s) if slot != self._slot)
