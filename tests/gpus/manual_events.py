"""A stream whose progress the test decides."""

import threading
import time
from collections.abc import Callable

from megatron_energy.gpus.errors import GpuError


class ManualStream:
    """Implements EventSource. Events are reached in the order in which they were recorded, when the test says so."""

    def __init__(self) -> None:
        self.recorded: list[ManualEvent] = []
        self.made = 0
        self.bound: list[str] = []  # names of the threads that were bound
        self.fails: str = ""  # what the next record or bind raises

    def new_event(self) -> "ManualEvent":
        self.made += 1
        return ManualEvent(self)

    def bind_thread(self) -> None:
        if self.fails:
            raise GpuError(self.fails)
        self.bound.append(threading.current_thread().name)

    def reach(self, number: int) -> None:
        """The GPU reaches the event that was recorded as number ``number``, from 0 on."""
        event = self.recorded[number]
        event.reached_s = time.monotonic()
        event.reached.set()


class ManualEvent:
    def __init__(self, stream: ManualStream) -> None:
        self.stream = stream
        self.reached = threading.Event()
        self.reached_s = 0.0
        self.error: str = ""

    def record(self) -> None:
        if self.stream.fails:
            raise GpuError(self.stream.fails)
        self.reached = threading.Event()
        self.stream.recorded.append(self)

    def synchronize(self) -> None:
        self.reached.wait()
        if self.error:
            raise GpuError(self.error)

    def time_s(self) -> float:
        return self.reached_s


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds; a minute is for machines that are very busy."""
    end_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end_s, "it never came"
        time.sleep(0.001)
