"""Lists of ranks as short text: ``0-3,8,10-11``. Ten thousand ranks that follow each other take as little room as two."""

from collections.abc import Iterable


def ranges_of(ranks: Iterable[int]) -> str:
    """The text of a set of ranks."""
    parts: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def ranks_of(text: str, world_size: int) -> list[int]:
    """The ranks of a text, sorted.

    Raises:
        ValueError: the text is no list of ranks of a job of ``world_size``.
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not (first.isdecimal() and (last.isdecimal() if dash else True)):
            raise ValueError(f"'{text}' is not a list of ranks such as 0-3,8")
        begin, end = int(first), int(last or first)
        if not begin <= end < world_size:
            raise ValueError(f"ranks {part} do not exist in a job of {world_size}")
        found.update(range(begin, end + 1))
    return sorted(found)
