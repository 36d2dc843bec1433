"""Tables that a page keeps between markers, filled cell by cell, so that a long evaluation can be done in parts.

    <!-- table: bounds -->
    | case | ideal | overlap |
    | --- | ---: | ---: |
    | GPT-3 V2 M16 | 18.69 | 18.41 |
    <!-- end: bounds -->

What is between the markers is the state: a later run reads it, replaces the cells that it computed, and keeps the others.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from megatron_energy.errors import UserError

Key: TypeAlias = tuple[str, ...]
EMPTY = "-"


@dataclass
class Table:
    """Rows of text cells.

    Attributes:
        keys: names of the first columns, which together name a row.
        columns: names of the others.
        cells: by row, then by column; in the order of the table.
    """

    keys: Sequence[str]
    columns: Sequence[str]
    cells: dict[Key, dict[str, str]] = field(default_factory=dict)

    def put(self, key: Key, values: Mapping[str, str]) -> None:
        """Fill cells of a row."""
        self.cells.setdefault(key, {}).update(values)

    def has(self, key: Key, column: str) -> bool:
        """Whether a cell is filled."""
        return self.cells.get(key, {}).get(column, EMPTY) != EMPTY

    def sort(self, order: Iterable[Key]) -> None:
        """Rows in this order; those that it does not name are dropped: the table no longer has them."""
        self.cells = {key: self.cells[key] for key in order if key in self.cells}

    def lines(self) -> list[str]:
        """Markdown."""
        rows = [[*key, *(row.get(column, EMPTY) for column in self.columns)] for key, row in self.cells.items()]
        rules = ["---"] * len(self.keys) + ["---:"] * len(self.columns)
        return [f"| {' | '.join(row)} |" for row in ([*self.keys, *self.columns], rules, *rows)]

    def read(self, lines: Iterable[str]) -> None:
        """Take over the cells of a table in Markdown, as far as its columns have the same names."""
        rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines if line.startswith("|")]
        if len(rows) < 2 or rows[0][: len(self.keys)] != list(self.keys):
            return
        for row in rows[2:]:
            key, values = tuple(row[: len(self.keys)]), dict(zip(rows[0], row, strict=True))
            self.put(key, {column: values[column] for column in self.columns if column in values})


def _section(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- table: {re.escape(name)} -->\n)(.*?)(<!-- end: {re.escape(name)} -->)", re.DOTALL)


def section(page: Path, name: str) -> str:
    """What a page has between a table's markers.

    Raises:
        UserError: no such page, or none of these markers in it.
    """
    try:
        found = _section(name).search(page.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {page}: {error.strerror}") from error
    if found is None:
        raise UserError(f"{page} has no place for the table: put the lines '<!-- table: {name} -->' and '<!-- end: {name} -->' there")
    return found[2]


def replace_section(page: Path, name: str, text: str) -> None:
    """Put ``text`` between a table's markers; nothing else on the page changes.

    Raises:
        UserError: as of :func:`section`.
    """
    section(page, name)
    before = page.read_text(encoding="utf-8")
    page.write_text(_section(name).sub(lambda found: found[1] + text + found[3], before, count=1), encoding="utf-8")
