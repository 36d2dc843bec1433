"""What one rank did in one iteration, in program order.

A *program* is a list of steps. The recorder writes the program that Megatron executed; :mod:`megatron_energy.pipeline`
writes the program that a schedule prescribes; both use these types, so the two can be compared with ``==``.

Example, a middle stage of a pipeline, one microbatch::

    Post("recv_prev", 0), Wait("recv_prev", 0), Compute("forward", 0, 0), Post("send_next", 0), ...
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Direction: TypeAlias = Literal["forward", "backward"]
Transfer: TypeAlias = Literal["recv_prev", "send_next", "recv_next", "send_prev"]
"""Megatron's names: activations travel recv_prev / send_next, gradients recv_next / send_prev."""

TRANSFERS: tuple[Transfer, ...] = ("recv_prev", "send_next", "recv_next", "send_prev")
"""Canonical order: transfers posted (or waited for) in one call are recorded in this order."""


@dataclass(frozen=True, slots=True)
class Compute:
    """One operation: the forward or backward of one model chunk for one microbatch."""

    kind: Direction
    chunk: int
    microbatch: int


@dataclass(frozen=True, slots=True)
class Post:
    """A point-to-point transfer is handed to the communication library (not yet waited for).

    ``index`` counts this rank's posts of this transfer name since the start of the iteration. The k-th ``send_next`` of a
    stage meets the k-th ``recv_prev`` of the next stage (the last stage's next is the first), gradients alike.
    """

    transfer: Transfer
    index: int


@dataclass(frozen=True, slots=True)
class Wait:
    """The rank's compute stream waits here until the transfer of the same name and index is complete."""

    transfer: Transfer
    index: int


@dataclass(frozen=True, slots=True)
class GradSyncStart:
    """An overlapped gradient reduction of one chunk starts (``overlap_grad_reduce``)."""

    chunk: int


@dataclass(frozen=True, slots=True)
class GradSync:
    """Gradients are reduced across the data-parallel group of this rank (``finalize_model_grads``); joins the group."""


@dataclass(frozen=True, slots=True)
class Optimizer:
    """The optimizer step, with its global gradient norm; joins all ranks before it updates."""


@dataclass(frozen=True, slots=True)
class ClockRequest:
    """A clock is asked for ``delay_s`` after this point of the program is reached on the GPU (0 MHz: back to the GPU's own choice).

    ``ahead`` tells when a raise is late: how many operations (with grad syncs and optimizer steps) of this rank may begin, from this
    point on, before the one that needs the clock. None: the first one that begins after the request was issued needs it.
    ``raise_in_s`` tells whether a lower still pays when it is late: how long after it is due the next raise will be. None: not known.
    """

    clock_mhz: int
    delay_s: float = 0.0
    ahead: int | None = None
    raise_in_s: float | None = None


Step: TypeAlias = Compute | Post | Wait | GradSyncStart | GradSync | Optimizer | ClockRequest
Program: TypeAlias = list[Step]
