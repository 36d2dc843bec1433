"""Point-to-point pattern of the interleaved schedule: what its communication modes share, and batched communication.

Source of the pattern: megatron-core 0.16.1 and 0.19.2, forward_backward_pipelining_with_interleaving.
"""

from abc import ABC, abstractmethod

from megatron_energy.pipeline.order import backward_order, forward_order, warmup_count
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.pipeline.tape import Tape
from megatron_energy.records.steps import Compute, Program, Transfer


class InterleavedProgram(ABC):
    """Writes the program of one stage. Operations are counted by k, over all chunks, separately in each direction."""

    def __init__(self, schedule: Schedule, stage: int) -> None:
        self.schedule = schedule
        self.first = stage == 0
        self.last = stage == schedule.stages - 1
        self.tape = Tape()
        self.forwards = forward_order(schedule)
        self.backwards = backward_order(schedule)
        self.total = len(self.forwards)
        self.warmup_count = warmup_count(schedule, stage)
        self.pairs = self.total - self.warmup_count

    def write(self) -> Program:
        """The whole program."""
        if not self.first:
            self.tape.exchange("recv_prev")
        self.write_warmup()
        self.write_steady()
        if self.backwards:
            if self.pairs == 0 and not self.last:
                self.tape.exchange("recv_next")
            self.write_cooldown()
        return self.tape.steps

    @abstractmethod
    def write_warmup(self) -> None:
        """Forwards before the first pair."""

    @abstractmethod
    def write_steady(self) -> None:
        """Pairs of a forward and a backward."""

    @abstractmethod
    def write_cooldown(self) -> None:
        """Backwards after the last pair."""

    def send_next(self, k: int) -> Transfer | None:
        """The send that follows forward k: none for the model's last chunk."""
        return None if self.takes_no_gradient(self.forwards[k]) else "send_next"

    def send_prev(self, k: int) -> Transfer | None:
        """The send that follows backward k: none for the model's first chunk."""
        return None if self.takes_no_activation(self.backwards[k]) else "send_prev"

    def recv_prev(self, k: int) -> Transfer | None:
        """The receive that is posted around forward k, for a later forward.

        The first stage receives what the last stage sends, which lags by the length of the pipeline.
        """
        if k == self.total - 1 or (self.first and not self._arrives(self.forwards, k, self.schedule.chunks - 1)):
            return None
        return "recv_prev"

    def recv_next(self, k: int) -> Transfer | None:
        """The receive that is posted around backward k, for a later backward; see :meth:`recv_prev`."""
        if k == self.total - 1 or (self.last and not self._arrives(self.backwards, k, 0)):
            return None
        return "recv_next"

    def takes_no_activation(self, operation: Compute) -> bool:
        """Whether the operation belongs to the model's first chunk, whose input is data."""
        return self.first and operation.chunk == 0

    def takes_no_gradient(self, operation: Compute) -> bool:
        """Whether the operation belongs to the model's last chunk, whose output is the loss."""
        return self.last and operation.chunk == self.schedule.chunks - 1

    def _arrives(self, order: list[Compute], k: int, final_chunk: int) -> bool:
        """Whether the far end of the pipeline, ``stages - 1`` operations behind, sends something on after its own operation."""
        aligned = k - (self.schedule.stages - 1)
        return aligned >= 0 and order[aligned].chunk != final_chunk


class BatchedProgram(InterleavedProgram):
    """No overlap: a forward and a backward run, then one blocking exchange moves the tensors of both."""

    def write_warmup(self) -> None:
        """Each forward is followed by one exchange; the last one also receives the first gradient."""
        for k in range(self.warmup_count):
            before_pairs = k == self.warmup_count - 1 and self.pairs > 0
            first_gradient: Transfer | None = "recv_next" if before_pairs and not self.last else None
            self.tape.steps.append(self.forwards[k])
            self.tape.exchange(self.send_next(k), self.recv_prev(k), first_gradient)

    def write_steady(self) -> None:
        """One exchange of up to four tensors per pair."""
        for k in range(self.pairs):
            forward = k + self.warmup_count
            self.tape.steps += [self.forwards[forward], self.backwards[k]]
            self.tape.exchange(self.send_next(forward), self.send_prev(k), self.recv_prev(forward), self.recv_next(k))

    def write_cooldown(self) -> None:
        """Each backward is followed by one exchange."""
        for k in range(self.pairs, self.total):
            self.tape.steps.append(self.backwards[k])
            self.tape.exchange(self.send_prev(k), self.recv_next(k))
