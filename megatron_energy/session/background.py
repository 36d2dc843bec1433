"""A thread for what takes seconds, so that training does not wait for it."""

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

Task = Callable[[], object]


class Background:
    """Does tasks one after another in a thread of its own, which does not hold up the end of the process.

    Args:
        failed: told of an exception that a task did not catch; further tasks go on.
        name: of the thread.
    """

    def __init__(self, failed: Callable[[Exception], None], name: str = "planning") -> None:
        self._failed, self._name = failed, name
        self._tasks: SimpleQueue[Task] = SimpleQueue()
        self._left = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def submit(self, task: Task) -> None:
        """Do it after those submitted before."""
        with self._changed:
            self._left += 1
        self._tasks.put(task)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def idle(self, wait_s: float = 0.0) -> bool:
        """Whether all tasks are done, waiting for that so long at most."""
        with self._changed:
            return self._changed.wait_for(lambda: self._left == 0, wait_s)

    def _run(self) -> None:
        while True:
            task = self._tasks.get()
            try:
                task()
            except Exception as error:  # noqa: BLE001 -- a defect of ours must not end the thread, nor the training
                with suppress(Exception):  # such as a standard output that nobody reads any more
                    self._failed(error)
            with self._changed:
                self._left -= 1
                self._changed.notify_all()
