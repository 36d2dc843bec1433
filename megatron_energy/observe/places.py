"""The order in which GPUs are shown: node by node, n2 before n10."""

import re
from typing import TypeAlias

Place: TypeAlias = tuple[tuple[tuple[bool, int, str], ...], int]


def place_of(node: str, gpu: int) -> Place:
    """What to sort by, so that numbers in the names of nodes count as numbers (TensorBoard sorts its tags the same way).

    Args:
        node: name of the node.
        gpu: index on it.
    """
    parts = re.findall(r"\d+|\D+", node)
    return tuple((not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts), gpu
