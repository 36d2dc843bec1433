"""How long clock switches take on the nodes of this job: measured by all ranks together before the first iteration."""

from collections.abc import Callable

from megatron_energy.gpus.errors import GpuError
from megatron_energy.gpus.latency import LatencyProbe, SwitchingLatency
from megatron_energy.session.exchange import Exchange

ROUNDS, ROUNDS_TOGETHER = 6, 10


class _Meetings:
    """Barriers over all ranks, of which every rank has to come to the same number."""

    def __init__(self, exchange: Exchange, count: int) -> None:
        self._exchange, self._left = exchange, count

    def meet(self) -> None:
        """Wait for the others."""
        self._left -= 1
        self._exchange.gather(None)
        self._exchange.broadcast(None)

    def rest(self) -> None:
        """Come to those that are left."""
        while self._left > 0:
            self.meet()


def measure_switching(
    make_probe: Callable[[], LatencyProbe], exchange: Exchange, turn: int, turns: int, rounds: int = ROUNDS
) -> SwitchingLatency | str:
    """Measure this rank's GPU, alone and with the others of its node; or why that failed. All ranks call it at the same place.

    Args:
        make_probe: for this rank's GPU.
        exchange: to the other ranks.
        turn: this rank's number on its node.
        turns: ranks of the fullest node.
        rounds: switches of a GPU alone.
    """
    meetings = _Meetings(exchange, turns + ROUNDS_TOGETHER)
    try:
        return make_probe().measure(rounds, meetings.meet, turns, turn, ROUNDS_TOGETHER)
    except (GpuError, ValueError) as error:
        return str(error)
    finally:
        meetings.rest()
