"""Point-to-point pattern of plain 1F1B: every exchange blocks.

Source of the pattern: megatron-core 0.16.1 and 0.19.2, forward_backward_pipelining_without_interleaving.
"""

from megatron_energy.pipeline.order import backward_order, forward_order, warmup_count
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.pipeline.tape import Tape
from megatron_energy.records.steps import Program, Transfer


def plain_program(schedule: Schedule, stage: int) -> Program:
    """Program of one stage of a pipeline without interleaving, one stage alone included."""
    first, last = stage == 0, stage == schedule.stages - 1
    receive_activation: Transfer | None = None if first else "recv_prev"
    send_activation: Transfer | None = None if last else "send_next"
    receive_gradient: Transfer | None = None if last else "recv_next"
    send_gradient: Transfer | None = None if first else "send_prev"

    tape = Tape()
    forwards, backwards = forward_order(schedule), backward_order(schedule)
    warmup = warmup_count(schedule, stage)
    for forward in forwards[:warmup]:
        tape.exchange(receive_activation)
        tape.steps.append(forward)
        tape.exchange(send_activation)
    pairs = len(forwards) - warmup
    if pairs:
        tape.exchange(receive_activation)
    for k in range(pairs):
        next_activation = receive_activation if k < pairs - 1 else None
        tape.steps.append(forwards[warmup + k])
        if schedule.forward_only:  # two calls, where training combines the send with the gradient's receive
            tape.exchange(send_activation)
            tape.exchange(next_activation)
        else:
            tape.exchange(send_activation, receive_gradient)
            tape.steps.append(backwards[k])
            tape.exchange(send_gradient, next_activation)
    for backward in backwards[pairs:]:
        tape.exchange(receive_gradient)
        tape.steps.append(backward)
        tape.exchange(send_gradient)
    return tape.steps
