"""The live switch on one node: one process looks at RUN_DIR/control, and all ranks of the node know at once what it found.

Between log intervals ranks exchange nothing, so a drop reaches them through a byte of memory that the ranks of a node share. Each of
them falls back to maximum clocks alone, in the operation that is running; what the job does next is agreed upon at the log interval.
"""

import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path

LOOK_S = 1.0
"""Between two looks at the file. Network file systems keep what they know of a file for some seconds, so more looks would tell no more."""


class NodeSwitch:
    """A byte that says whether the job is dropped.

    Args:
        path: the shared file; made where there is none. Raises OSError where that is not possible.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, 1)
            self._memory = mmap.mmap(descriptor, 1)
        finally:
            os.close(descriptor)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def dropped(self) -> bool:
        """What was found last. A read from memory: fit for a hook."""
        return self._memory[0] != 0

    def watch(self, dropped: Callable[[], bool], look_s: float = LOOK_S) -> None:
        """Look from a thread of this process, one per node, as a look may take long on a network file system.

        Args:
            dropped: looks; see :class:`~megatron_energy.session.control.Control`.
            look_s: between two looks.
        """
        self._thread = threading.Thread(target=self._run, args=(dropped, look_s), name="live-switch", daemon=True)
        self._thread.start()

    def _run(self, dropped: Callable[[], bool], look_s: float) -> None:
        while True:
            self._memory[0] = dropped()
            if self._stopping.wait(look_s):
                return

    def close(self) -> None:
        """End the thread, without waiting for a look that hangs."""
        self._stopping.set()


class NoSwitch:
    """Where nothing is requested, or no memory can be shared: the live switch acts at log intervals."""

    dropped = False

    def watch(self, dropped: Callable[[], bool]) -> None:
        """Nobody could be told."""

    def close(self) -> None:
        """Nothing to do."""
