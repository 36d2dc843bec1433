"""What one rank does in an iteration, written down in program order as the hooks see it.

Hooks fire when Megatron enqueues work. Order is exact; time is not recorded here. Every method costs a few microseconds.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from megatron_energy.megatron.runtime_protocol import Requests
from megatron_energy.records.steps import (
    ClockRequest,
    Compute,
    Direction,
    GradSync,
    GradSyncStart,
    Optimizer,
    Post,
    Program,
    Transfer,
    Wait,
)
from megatron_energy.session.directive import TransitionPoint

ITERATION_BEGIN: TransitionPoint = ("iteration", -1, -1, "begin")
ITERATION_END: TransitionPoint = ("iteration", -1, -1, "end")
GRAD_SYNC_BEGIN: TransitionPoint = ("grad-sync", -1, -1, "begin")
GRAD_SYNC_END: TransitionPoint = ("grad-sync", -1, -1, "end")
OPTIMIZER_BEGIN: TransitionPoint = ("optimizer", -1, -1, "begin")
OPTIMIZER_END: TransitionPoint = ("optimizer", -1, -1, "end")
WAIT_BEGIN: TransitionPoint = ("wait", -1, -1, "begin")
WAIT_END: TransitionPoint = ("wait", -1, -1, "end")

UNKNOWN_OUTPUT = "a backward ran on an output that no recorded forward made"


@functools.cache
def _compute(kind: Direction, chunk: int, microbatch: int) -> Compute:
    """The step, made once: it is the same in every iteration."""
    return Compute(kind, chunk, microbatch)


@functools.cache
def _transfer(transfer: Transfer, index: int) -> tuple[Post, Wait]:
    """Both steps of a transfer, made once."""
    return Post(transfer, index), Wait(transfer, index)


class Recorder:
    """Appends steps to :attr:`program` and hands over clock requests at transition points.

    Attributes:
        program: the steps since the last :meth:`take`.
        requests: clock requests by transition point.
        request: where requests go when their point is reached; None: into the program, which is how virtual time learns of them.
        mark: told of every point that is reached, and of begins and ends of waits, so that they can be timed; None: nobody is.
        on_broken: told, once per iteration, why its program cannot be trusted.
        broken: that reason; None while all is well.
    """

    def __init__(self, on_broken: Callable[[str], None] | None = None) -> None:
        self.program: Program = []
        self.requests: Requests = {}
        self.request: Callable[[ClockRequest], None] | None = None
        self.mark: Callable[[TransitionPoint], None] | None = None
        self.on_broken = on_broken
        self.broken: str | None = None
        self._counts: dict[Transfer, int] = {}
        self._outputs: dict[int, tuple[Any, int, int]] = {}
        self._backward: tuple[int, int] = (-1, -1)

    def begin_iteration(self, requests: Requests) -> None:
        """A schedule call starts, the first of this iteration."""
        self.requests = requests
        self.reach(ITERATION_BEGIN)

    def take(self) -> Program:
        """The program so far; a new one begins."""
        program, self.program = self.program, []
        self._counts = {}
        self._outputs = {}
        self.broken = None
        return program

    def fail(self, reason: str) -> None:
        """Mark the iteration's program as not to be trusted. Training goes on."""
        if self.broken is None:
            self.broken = reason
            if self.on_broken is not None:
                self.on_broken(reason)

    def reach(self, point: TransitionPoint) -> None:
        """Hand over the clock requests of a transition point."""
        if self.mark is not None:
            self.mark(point)
        if not self.requests:
            return
        found = self.requests.get(point)
        if found:
            hand_over = self.request if self.request is not None else self.program.append
            for request in found:
                hand_over(request)

    def begin_forward(self, chunk: int, microbatch: int) -> None:
        """The forward of this chunk and microbatch starts."""
        self._begin("forward", chunk, microbatch)

    def end_forward(self, chunk: int, microbatch: int, output: Any) -> None:
        """It has ended. ``output`` is kept until its backward, as Megatron keeps it; None: there will be no backward."""
        if output is not None:
            self._outputs[id(output)] = (output, chunk, microbatch)
        self.reach(("forward", chunk, microbatch, "end"))

    def begin_backward(self, output: Any) -> None:
        """The backward that starts from ``output`` begins: which one it is follows from the forward that made the output."""
        known = self._outputs.pop(id(output), None)
        if known is None:
            self._backward = (-1, -1)
            self.fail(UNKNOWN_OUTPUT)
            return
        _, chunk, microbatch = known
        self._backward = (chunk, microbatch)
        self._begin("backward", chunk, microbatch)

    def end_backward(self) -> tuple[int, int]:
        """The running backward has ended: its chunk and microbatch; (-1, -1) where it was unknown."""
        chunk, microbatch = self._backward
        if chunk >= 0:
            self.reach(("backward", chunk, microbatch, "end"))
        return self._backward

    def _begin(self, kind: Direction, chunk: int, microbatch: int) -> None:
        self.reach((kind, chunk, microbatch, "begin"))
        self.program.append(_compute(kind, chunk, microbatch))

    def post(self, transfers: Sequence[Transfer]) -> list[Wait]:
        """Transfers are posted, in the canonical order; the waits that will complete them."""
        waits = []
        for transfer in transfers:
            index = self._counts.get(transfer, 0)
            self._counts[transfer] = index + 1
            post, wait = _transfer(transfer, index)
            self.program.append(post)
            waits.append(wait)
        return waits

    def begin_wait(self) -> None:
        """The compute stream may have to wait from here on."""
        if self.mark is not None:
            self.mark(WAIT_BEGIN)

    def end_wait(self) -> None:
        """Until here."""
        if self.mark is not None:
            self.mark(WAIT_END)

    def wait(self, waits: Sequence[Wait]) -> None:
        """The compute stream waits for these transfers."""
        self.program.extend(waits)

    def start_grad_sync(self, chunk: int) -> None:
        """An overlapped gradient reduction of this chunk starts."""
        self.program.append(GradSyncStart(chunk))

    def begin_grad_sync(self) -> None:
        """Gradients are being finalised."""
        self.reach(GRAD_SYNC_BEGIN)
        self.program.append(GradSync())

    def end_grad_sync(self) -> None:
        """Gradients are final."""
        self.reach(GRAD_SYNC_END)

    def begin_optimizer(self) -> None:
        """The optimizer step starts."""
        self.reach(OPTIMIZER_BEGIN)
        self.program.append(Optimizer())

    def end_optimizer(self) -> None:
        """The optimizer step has ended, and with it the iteration."""
        self.reach(OPTIMIZER_END)
        self.reach(ITERATION_END)
