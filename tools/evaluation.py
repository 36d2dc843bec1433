"""What all tables of an evaluation share: what is asked for, and how cells are written."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from evaluation_page import Key, Table

Update: TypeAlias = tuple[Key, Mapping[str, str]]
"""Cells of one row."""


@dataclass(frozen=True)
class Request:
    """What to compute.

    Attributes:
        folder: with the published profiles.
        known: cells that are there already.
        words: a row is wanted if all words of any of these are among its words; none: all rows.
        missing: only cells that are not there yet.
        columns: only these; none: all.
        effort: of searches: default or high.
        scratch: a folder for the environment of other solvers; None: they are left out.
        limit_s: seconds that a proof or another solver may take.
        other: another table as the page has it.
    """

    folder: Path
    known: Table
    words: Sequence[str] = ()
    missing: bool = False
    columns: Sequence[str] = ()
    effort: str = "default"
    scratch: Path | None = None
    limit_s: float = 60.0
    other: Callable[[str], Table | None] = lambda name: None

    def wants(self, key: Key, column: str) -> bool:
        """Whether a cell is to be computed."""
        words = " ".join(key).split()
        named = not self.words or any(set(wanted.split()) <= set(words) for wanted in self.words)
        return named and (not self.columns or column in self.columns) and not (self.missing and self.known.has(key, column))

    def wants_row(self, key: Key) -> bool:
        """Whether any cell of a row is to be computed."""
        return any(self.wants(key, column) for column in self.known.columns)


@dataclass(frozen=True)
class Sheet:
    """One table.

    Attributes:
        keys, columns: their names.
        order: all rows.
        fill: computes cells, row by row.
    """

    keys: Sequence[str]
    columns: Sequence[str]
    order: Sequence[Key]
    fill: Callable[[Request], Iterator[Update]]

    def empty(self) -> Table:
        """A table without rows."""
        return Table(self.keys, self.columns)


def keys_of(*parts: object) -> Key:
    """A row's name."""
    return tuple(str(part) for part in parts)


def points(value: float) -> str:
    """A difference in percentage points, with its sign; 0 has none."""
    return f"{value:+.3f}" if abs(value) >= 5e-4 else "0.000"


def slower(percent: float) -> str:
    """How much longer an iteration takes."""
    return f"{percent:+.2f}%" if abs(percent) >= 5e-3 else "0.00%"


def each(keys: Iterable[Key], request: Request) -> Iterator[Key]:
    """Rows of which something is wanted."""
    return (key for key in keys if request.wants_row(key))
