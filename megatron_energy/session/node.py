"""The ranks of one node: who they are, and the memory that they share."""

import os
import secrets
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from megatron_energy.gpus.turns import NodeTurns
from megatron_energy.session.exchange import Exchange
from megatron_energy.session.facts import JobFacts
from megatron_energy.session.node_switch import NodeSwitch, NoSwitch

SHARED_MEMORY = Path("/dev/shm")


def neighbours(facts: JobFacts, rank: int) -> list[int]:
    """Ranks on the same node, this one included, in order."""
    return [r.rank for r in facts.ranks if r.node == facts.ranks[rank].node]


def fullest_node(facts: JobFacts) -> int:
    """Ranks on the node that has most."""
    return max(Counter(r.node for r in facts.ranks).values())


class NodeMemory(NamedTuple):
    """What the ranks of a node share. Each part stands for nothing where there is no place for it.

    Attributes:
        turns: announcements of raises.
        switch: the live switch.
        first: this rank is the node's first, which looks at the switch for all.
    """

    turns: NodeTurns | None
    switch: NodeSwitch | NoSwitch
    first: bool


def open_memory(exchange: Exchange, facts: JobFacts) -> NodeMemory:
    """This rank's part of what its node shares. All ranks call it together.

    The files' names are gone as soon as all have opened them, so that nothing is left behind however the job ends.
    """
    token = exchange.broadcast(secrets.token_hex(8))
    folder = SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
    mine = neighbours(facts, exchange.rank)
    paths = [folder / f"megatron-energy-{token}-{mine[0]}-{part}" for part in ("turns", "switch")]  # by node: hosts may hold several
    turns: NodeTurns | None = None
    switch: NodeSwitch | NoSwitch = NoSwitch()
    with suppress(OSError):
        turns = NodeTurns(paths[0], mine.index(exchange.rank), len(mine))
        switch = NodeSwitch(paths[1])
    exchange.gather(None)
    exchange.broadcast(None)
    for path in paths:
        with suppress(OSError):
            os.unlink(path)
    return NodeMemory(turns, switch, mine[0] == exchange.rank)
