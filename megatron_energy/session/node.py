"""The ranks of one node: who they are, and the memory through which they let each other's raises go first."""

import os
import secrets
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

from megatron_energy.gpus.turns import NodeTurns
from megatron_energy.session.exchange import Exchange
from megatron_energy.session.facts import JobFacts

SHARED_MEMORY = Path("/dev/shm")


def neighbours(facts: JobFacts, rank: int) -> list[int]:
    """Ranks on the same node, this one included, in order."""
    return [r.rank for r in facts.ranks if r.node == facts.ranks[rank].node]


def fullest_node(facts: JobFacts) -> int:
    """Ranks on the node that has most."""
    return max(Counter(r.node for r in facts.ranks).values())


def open_turns(exchange: Exchange, facts: JobFacts) -> NodeTurns | None:
    """This rank's part of its node's announcements; None where there is no place for them. All ranks call it together.

    The file's name is gone as soon as all have opened it, so that nothing is left behind however the job ends.
    """
    token = exchange.broadcast(secrets.token_hex(8))
    folder = SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
    mine = neighbours(facts, exchange.rank)
    path = folder / f"megatron-energy-{token}-{mine[0]}"  # by node: virtual ones on one host share its memory
    turns = None
    with suppress(OSError):
        turns = NodeTurns(path, mine.index(exchange.rank), len(mine))
    exchange.gather(None)
    exchange.broadcast(None)
    with suppress(OSError):
        os.unlink(path)
    return turns
