"""Point-to-point pattern of the interleaved schedule with overlapped communication.

Sends and receives are posted after an operation and waited for later: a receive before the operation that needs it, a send
after the next post of its kind. Until the pairs begin, and after they end, exchanges still block unless the warm-up flush is on.

Source of the pattern: megatron-core 0.16.1 and 0.19.2, forward_backward_pipelining_with_interleaving.
"""

from megatron_energy.pipeline.interleaved import InterleavedProgram
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.records.steps import Transfer, Wait


class OverlappedProgram(InterleavedProgram):
    """Modes overlap and overlap-wait."""

    def __init__(self, schedule: Schedule, stage: int) -> None:
        super().__init__(schedule, stage)
        # Later releases wait for an activation's send at once before they free the activation; gradients are not freed.
        self.wait_at_once = schedule.p2p == "overlap-wait"
        self.activations: list[Wait] = []  # receives posted, oldest first
        self.gradients: list[Wait] = []
        self.sent_activation: Wait | None = None  # the send that nobody has waited for yet
        self.sent_gradient: Wait | None = None

    def write_warmup(self) -> None:
        """Blocking exchanges; the receive of the first gradient is posted before the pairs begin."""
        for k in range(self.warmup_count):
            self.tape.steps.append(self.forwards[k])
            self.tape.exchange(self.send_next(k), self.recv_prev(k))
        self.post_first_gradient()

    def write_steady(self) -> None:
        """Both directions overlap: wait for the input, run, post."""
        for k in range(self.pairs):
            forward = k + self.warmup_count
            if not self.takes_no_activation(self.forwards[forward]):
                self.wait_oldest(self.activations)
            self.tape.steps.append(self.forwards[forward])
            self.post_activations(self.send_next(forward), self.recv_prev(forward))
            if not self.takes_no_gradient(self.backwards[k]):
                self.wait_oldest(self.gradients)
            self.tape.steps.append(self.backwards[k])
            self.post_gradients(self.send_prev(k), self.recv_next(k))

    def write_cooldown(self) -> None:
        """Blocking exchanges; receives that the pairs left behind are waited for one by one; the last overlapped send at the end."""
        for k in range(self.pairs, self.total):
            self.wait_gradient_of(k)
            self.tape.steps.append(self.backwards[k])
            self.tape.exchange(self.send_prev(k), self.recv_next(k))
        self.tape.wait(self.sent_gradient)

    def post_first_gradient(self) -> None:
        """Post the receive of the first gradient at the end of the warm-up."""
        if self.pairs and not self.last and self.backwards:
            self.post_gradients(None, "recv_next")

    def wait_gradient_of(self, k: int) -> None:
        """Wait for the gradient of backward k of the cool-down, where it was posted without blocking."""
        if k > 0 and not self.takes_no_gradient(self.backwards[k]):
            self.wait_oldest(self.gradients)

    def wait_oldest(self, receives: list[Wait]) -> None:
        """Wait for the oldest posted receive; none may be left when blocking exchanges delivered the tensor."""
        if receives:
            self.tape.wait(receives.pop(0))

    def post_activations(self, send: Transfer | None, receive: Transfer | None) -> None:
        """Post after a forward, then wait for the previous send (and at once for this one, in mode overlap-wait)."""
        waits = self.tape.post(send, receive)
        self.tape.wait(self.sent_activation)
        self.sent_activation = waits.get("send_next")
        if "recv_prev" in waits:
            self.activations.append(waits["recv_prev"])
        if self.wait_at_once:
            self.tape.wait(self.sent_activation)
            self.sent_activation = None

    def post_gradients(self, send: Transfer | None, receive: Transfer | None) -> None:
        """Post after a backward, then wait for the previous send."""
        waits = self.tape.post(send, receive)
        self.tape.wait(self.sent_gradient)
        self.sent_gradient = waits.get("send_prev")
        if "recv_next" in waits:
            self.gradients.append(waits["recv_next"])


class FlushedProgram(OverlappedProgram):
    """Warm-up flush: warm-up and cool-down overlap too, and all stages but the leading one receive one operation ahead."""

    def write_warmup(self) -> None:
        """The next receive is posted before the forward (first stage: with the send after it)."""
        for k in range(self.warmup_count):
            if k > 0 and not self.takes_no_activation(self.forwards[k]):
                self.wait_oldest(self.activations)
            if not self.first:
                self.activations += self.tape.post(self.recv_prev(k)).values()
            self.tape.steps.append(self.forwards[k])
            self.post_activations(self.send_next(k), self.recv_prev(k) if self.first else None)
        self.post_first_gradient()

    def write_cooldown(self) -> None:
        """The next receive is posted before the backward (last stage: with the send after it)."""
        for k in range(self.pairs, self.total):
            self.wait_gradient_of(k)
            if not self.last:
                self.gradients += self.tape.post(self.recv_next(k)).values()
            self.tape.steps.append(self.backwards[k])
            self.post_gradients(self.send_prev(k), self.recv_next(k) if self.last else None)
        self.tape.wait(self.sent_gradient)
