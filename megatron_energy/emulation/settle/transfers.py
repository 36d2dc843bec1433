"""Point-to-point transfers: the k-th send of a channel meets the k-th receive."""

from dataclasses import dataclass, field

from megatron_energy.emulation.settle.requests import NEVER
from megatron_energy.emulation.settle.wiring import Wiring
from megatron_energy.records.steps import Transfer

Key = tuple[int, int, bool, int]
"""Source, destination, whether it carries activations (else gradients), index."""


@dataclass(slots=True)
class Meeting:
    """One transfer: it begins when both sides have posted it. ``waiting`` are ranks that need its end."""

    sent: bool = False
    received: bool = False
    done_s: float = NEVER
    waiting: list[int] = field(default_factory=list)


class Transfers:
    """All transfers of one iteration."""

    def __init__(self, wiring: Wiring, transfer_s: float) -> None:
        self._wiring = wiring
        self._transfer_s = transfer_s
        self._meetings: dict[Key, Meeting] = {}

    def _meeting(self, rank: int, transfer: Transfer, index: int) -> Meeting:
        if transfer == "send_next":
            key = (rank, self._wiring.next_rank[rank], True, index)
        elif transfer == "recv_prev":
            key = (self._wiring.prev_rank[rank], rank, True, index)
        elif transfer == "recv_next":
            key = (self._wiring.next_rank[rank], rank, False, index)
        else:
            key = (rank, self._wiring.prev_rank[rank], False, index)
        return self._meetings.setdefault(key, Meeting())

    def post(self, at_s: float, rank: int, transfer: Transfer, index: int) -> Meeting:
        """One side is posted; ``done_s`` of the result is known when it was the second."""
        meeting = self._meeting(rank, transfer, index)
        if transfer.startswith("send"):
            meeting.sent = True
        else:
            meeting.received = True
        if meeting.sent and meeting.received:
            meeting.done_s = at_s + self._transfer_s
        return meeting

    def wait(self, rank: int, transfer: Transfer, index: int) -> Meeting:
        """The transfer that a rank waits for."""
        return self._meeting(rank, transfer, index)
