"""The clock controller: hooks ask when they enqueue work, one thread issues the requests when the GPU gets there.

One controller and one thread per process and GPU. Requests stay in the order in which they were made::

    controller = ClockController(NvmlActuator(gpu), cuda_events, Settings(lead_s=0.06), readings=gpu)
    controller.start()
    controller.request(1080)                 # in a hook: 1080 MHz once the GPU has done all that was enqueued before
    controller.request(1410, delay_s=0.03)   # ... and 1410 MHz 30 ms after another such point
    controller.close()                       # the clock is given back
"""

import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import NamedTuple, TypeAlias

from megatron_energy.gpus.actuators import Actuator
from megatron_energy.gpus.counts import ControllerReport, Counts
from megatron_energy.gpus.errors import GpuError
from megatron_energy.gpus.events import Event, EventPool, EventSource
from megatron_energy.gpus.issuer import ClockReadings, Issuer, Settings
from megatron_energy.gpus.turns import NodeTurns

SWITCH_INTERVAL_S = 0.001
"""How soon a busy thread hands Python over. With Python's 5 ms and two threads that compute in Python all the time, requests were
issued 5 ms late in the median and 90 ms at the 99th percentile; with 1 ms, 1 ms and 10 ms (tools/check_controller.py, 2 cores)."""

CLOSING_S = 2.0  # how long closing waits for the thread: a GPU that hangs never reaches the event waited for


class _Request(NamedTuple):
    event: Event
    clock_mhz: int
    delay_s: float
    raise_in_s: float
    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class _Order:
    """From another thread, in its turn: release the clock, and then stop issuing (with a reason) or end the thread."""

    stop: str = ""
    end: bool = False
    done: threading.Event = field(default_factory=threading.Event)


_Item: TypeAlias = "_Request | _Order"


class ClockController:
    """Controls the clock of one GPU.

    Args:
        actuator: how clocks are changed.
        events: where events on the GPU's stream come from.
        settings: see :class:`~megatron_energy.gpus.issuer.Settings`.
        readings: the GPU, to read its clock back now and then.
        turns: the node's other processes, for raises before lowers.
        on_stop: called once, from the controller's thread, with the reason when it stops issuing for good.
        clock: seconds, monotonic, the same as that of the events.
    """

    def __init__(
        self,
        actuator: Actuator,
        events: EventSource,
        settings: Settings | None = None,
        *,
        readings: ClockReadings | None = None,
        turns: NodeTurns | None = None,
        on_stop: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._interrupt = threading.Event()
        self._issuer = Issuer(actuator, settings or Settings(), readings, turns, clock)
        self._source, self._pool = events, EventPool(events)
        self._on_stop, self._clock = on_stop, clock
        self._queue: SimpleQueue[_Item] = SimpleQueue()
        self._ahead: deque[_Item] = deque()  # taken from the queue to look at, not yet served
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._switch_interval_s: float | None = None  # Python's own, to be put back
        self._accepting = False
        self._held = 0
        self._requested = self._refused = 0  # counted by the hooks' thread alone
        self._epoch = 0  # requests of an earlier one are forgotten
        self._passed = (0, math.inf)  # requests up to this number were reached by the GPU at this time (s) or before

    def start(self, switch_interval_s: float | None = SWITCH_INTERVAL_S) -> None:
        """Start the thread. ``switch_interval_s``: Python's own while it runs (None: as it is); closing puts it back."""
        if switch_interval_s is not None:
            self._switch_interval_s = sys.getswitchinterval()
            sys.setswitchinterval(switch_interval_s)
        self._thread = threading.Thread(target=self._run, name="clock-controller", daemon=True)
        self._accepting = True
        self._thread.start()

    def request(self, clock_mhz: int, delay_s: float = 0.0, raise_in_s: float = math.inf) -> None:
        """Ask for a clock, ``delay_s`` after the GPU has done what was enqueued so far. Costs microseconds and never blocks.

        Args:
            clock_mhz: a supported clock, or 0 for the GPU's own choice.
            delay_s: see above.
            raise_in_s: of a lower: how long after it is due the plan's next raise will be due, if that is known.
        """
        self._requested += 1
        if not self._accepting:
            self._refused += 1
            return
        try:
            event = self._pool.take()
            event.record()
        except GpuError as error:
            self._accepting = False
            self._queue.put(_Order(stop=f"clock control stopped: {error}"))
            return
        self._queue.put(_Request(event, clock_mhz, delay_s, raise_in_s, self._epoch, self._requested))

    def caught_up(self) -> None:
        """Tell that the host has just waited for the GPU (Megatron does, once an iteration): all requests so far are reached.

        Nothing is needed for requests to be issued; this lets a thread that is behind see that newer requests are due as well.
        """
        self._passed = (self._requested, self._clock())

    def to_maximum(self) -> None:
        """Forget all requests so far and give the clock back, as soon as the event being waited for is reached. Does not block."""
        self._forget()
        self._queue.put(_Order())

    @contextmanager
    def hold(self) -> Iterator[None]:
        """No event is outstanding, no request accepted and the clock given back while the block runs: for CUDA graph capture.

        Entering waits until the GPU has reached the events that are outstanding.
        """
        self._held += 1
        self._accepting = False
        self._wait_for_order()
        try:
            yield
        finally:
            self._held -= 1
            self._accepting = self._held == 0 and self._is_serving()

    def close(self) -> None:
        """End the thread and give the clock back. Does nothing a second time, or in a forked child."""
        if self._thread is None or os.getpid() != self._pid:
            return
        self._accepting = False
        self._forget()
        self._queue.put(_Order(end=True))
        self._thread.join(CLOSING_S)
        if self._thread.is_alive():  # it waits for an event that the GPU does not reach
            self._issuer.release()
        self._thread = None
        if self._switch_interval_s is not None:
            sys.setswitchinterval(self._switch_interval_s)

    @property
    def counts(self) -> Counts:
        """Counts so far; cheaper than :meth:`report`, which sorts durations."""
        return replace(self._issuer.counts, requested=self._requested, ignored=self._issuer.counts.ignored + self._refused)

    def report(self) -> ControllerReport:
        """Counts and durations so far."""
        report = self._issuer.report()
        report.counts.requested, report.counts.ignored = self._requested, report.counts.ignored + self._refused
        return report

    def _is_serving(self) -> bool:
        return self._thread is not None and self._thread.is_alive() and not self._issuer.stopped

    def _forget(self) -> None:
        self._epoch += 1
        self._interrupt.set()

    def _wait_for_order(self) -> None:
        order, thread = _Order(), self._thread
        self._queue.put(order)
        while thread is not None and thread.is_alive() and not order.done.wait(0.1):
            continue

    # From here on: the controller's thread.

    def _run(self) -> None:
        ended = False
        try:
            self._source.bind_thread()
            self._serve_all()
            ended = True
        except GpuError as error:
            self._stop(f"clock control stopped: {error}")
            ended = True
        finally:
            if not ended:
                self._stop("clock control stopped: its thread ended with the error above")

    def _serve_all(self) -> None:
        while True:
            item = self._ahead.popleft() if self._ahead else self._queue.get()
            if isinstance(item, _Request):
                self._serve(item)
            else:
                self._obey(item)
                if item.end:
                    return

    def _obey(self, order: _Order) -> None:
        if order.stop:
            self._stop(order.stop)
        else:
            self._interrupt.clear()
            self._issuer.release()
        order.done.set()

    def _serve(self, request: _Request) -> None:
        reached_s = self._wait(request)
        self._sleep_until(reached_s + request.delay_s, request.epoch)
        while (newer := self._newer_due()) is not None and request.epoch == self._epoch:
            self._issuer.counts.coalesced += 1
            request, reached_s = newer, self._wait(newer)
        if request.epoch != self._epoch:
            self._issuer.counts.ignored += 1
            return
        self._issuer.handle(request.clock_mhz, reached_s + request.delay_s, request.raise_in_s)
        if self._issuer.stopped:
            self._stop(self._issuer.stopped)

    def _wait(self, request: _Request) -> float:
        """Sleep until the GPU has reached the request's event; when that was."""
        request.event.synchronize()
        reached_s = request.event.time_s()
        self._pool.give(request.event)
        return reached_s

    def _sleep_until(self, due_s: float, epoch: int) -> None:
        while (remaining_s := due_s - self._clock()) > 0 and epoch == self._epoch:
            self._interrupt.wait(remaining_s)

    def _newer_due(self) -> _Request | None:
        """The next request, if it is known to be due; it is taken."""
        if not self._ahead and not self._look_ahead():
            return None
        newer, (number, passed_s) = self._ahead[0], self._passed
        if not isinstance(newer, _Request) or newer.number > number or passed_s + newer.delay_s > self._clock():
            return None
        self._ahead.popleft()
        return newer

    def _look_ahead(self) -> bool:
        try:
            self._ahead.append(self._queue.get_nowait())
        except Empty:
            return False
        return True

    def _stop(self, reason: str) -> None:
        """Issue nothing any more, and say so once."""
        self._accepting = False
        self._issuer.stop(reason)
        say, self._on_stop = self._on_stop, None
        if say is not None:
            say(self._issuer.stopped)
