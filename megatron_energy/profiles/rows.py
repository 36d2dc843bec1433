"""Rows of a profile's CSV file, each checked where it stands: an error names the file, the line and the column."""

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from megatron_energy.errors import UserError

REQUIRED = ("stage", "instruction", "frequency", "time", "energy")
OPTIONAL = ("chunk", "position", "rank", "memory_frequency", "throttled", "time_std", "energy_std", "samples")
POSITIONS = ("first", "steady", "last")
HIGHEST_MHZ = 100_000
_TRUE, _FALSE = ("1", "true", "yes"), ("", "0", "false", "no")


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement of one GPU. Absent optional values are -1 (numbers) or ``""``."""

    line: int
    stage: int
    chunk: int
    instruction: str
    clock_mhz: int  # 0: the time does not depend on the clock
    time_s: float
    energy_j: float
    position: str
    rank: int
    memory_clock_mhz: int
    throttled: bool
    facts: tuple[str, ...]  # values of the columns that are neither required nor optional


@dataclass(frozen=True, slots=True)
class _Fields:
    """The text of one line, read by column name."""

    path: Path
    line: int
    text: dict[str, str]

    def error(self, column: str, problem: str) -> UserError:
        return UserError(f"{self.path}, line {self.line}, column {column}: {problem}")

    def number(self, column: str, *, blank: float | None = None) -> float:
        """A finite number >= 0."""
        text = self.text.get(column, "")
        if not text and blank is not None:
            return blank
        try:
            value = float(text)
        except ValueError:
            raise self.error(column, f"'{text}' is not a number") from None
        if not math.isfinite(value) or value < 0:
            raise self.error(column, f"'{text}' must be a finite number, zero or more")
        return value

    def integer(self, column: str, *, blank: int | None = None) -> int:
        value = self.number(column, blank=blank)
        if value != int(value):
            raise self.error(column, f"'{self.text[column]}' must be a whole number")
        return int(value)

    def flag(self, column: str) -> bool:
        text = self.text.get(column, "").lower()
        if text not in _TRUE + _FALSE:
            raise self.error(column, f"'{text}' must be true or false")
        return text in _TRUE

    def one_of(self, column: str, choices: tuple[str, ...]) -> str:
        text = self.text.get(column, "")
        if text and text not in choices:
            raise self.error(column, f"'{text}' must be one of {', '.join(choices)}")
        return text


def read_rows(path: Path) -> tuple[tuple[str, ...], list[Row]]:
    """(names of the further columns, rows) of a profile file.

    Raises:
        UserError: unreadable or empty file, missing column, or a bad value.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as handle:
            return _parse(path, csv.reader(handle))
    except FileNotFoundError:
        raise UserError(f"profile {path} does not exist: give the path of a CSV file with the columns {','.join(REQUIRED)}") from None
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise UserError(f"profile {path} cannot be read: {problem}") from problem


def _parse(path: Path, lines: "Iterator[list[str]]") -> tuple[tuple[str, ...], list[Row]]:
    header = [name.strip() for name in next(lines, [])]
    if not any(header):
        raise UserError(f"profile {path} is empty: the first line must name the columns {','.join(REQUIRED)}")
    missing = [name for name in REQUIRED if name not in header]
    if missing:
        raise UserError(f"{path}, line 1: column {missing[0]} is missing; a profile needs {','.join(REQUIRED)}")
    twice = [name for name in header if name and header.count(name) > 1]
    if twice:
        raise UserError(f"{path}, line 1: column {twice[0]} is there twice: keep one of the two")
    further = tuple(name for name in header if name and name not in REQUIRED + OPTIONAL)
    rows = [_row(_fields(path, number, header, values), further) for number, values in enumerate(lines, start=2) if any(values)]
    if not rows:
        raise UserError(f"profile {path} has no rows below its header")
    return further, rows


def _fields(path: Path, line: int, header: list[str], values: list[str]) -> _Fields:
    if len(values) != len(header):
        raise UserError(f"{path}, line {line}: {len(values)} values where the header names {len(header)} columns")
    return _Fields(path, line, {name: value.strip() for name, value in zip(header, values, strict=True)})


def _row(fields: _Fields, further: tuple[str, ...]) -> Row:
    instruction = fields.text["instruction"]
    if not instruction:
        raise fields.error("instruction", "is empty; write forward, backward, blocking, grad-sync, optimizer or another name")
    row = Row(
        line=fields.line,
        stage=fields.integer("stage"),
        chunk=fields.integer("chunk", blank=-1),
        instruction=instruction,
        clock_mhz=fields.integer("frequency", blank=0),
        time_s=fields.number("time"),
        energy_j=fields.number("energy"),
        position=fields.one_of("position", POSITIONS),
        rank=fields.integer("rank", blank=-1),
        memory_clock_mhz=fields.integer("memory_frequency", blank=-1),
        throttled=fields.flag("throttled"),
        facts=tuple(fields.text[name] for name in further),
    )
    for column in ("time_std", "energy_std", "samples"):  # told by who measured; nothing here needs them, but they must make sense
        fields.number(column, blank=0.0)
    if row.instruction in ("forward", "backward", "blocking") and row.time_s == 0:
        raise fields.error("time", f"must be above zero for {row.instruction}")
    if row.instruction in ("forward", "backward") and row.clock_mhz == 0:
        raise fields.error("frequency", f"must be above zero for {row.instruction}")
    if row.clock_mhz > HIGHEST_MHZ:
        raise fields.error("frequency", f"'{fields.text['frequency']}' is no clock of a GPU: give it in MHz")
    return row
