"""The offline commands run in this process, and small profiles whose plans can be found with a pencil."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from megatron_energy.cli.main import main

Row = tuple[int, str, int, float, float]  # stage, instruction, MHz, s, J

TWO_CLOCKS: tuple[tuple[str, int, float, float], ...] = (
    ("forward", 1400, 1.0, 300.0),
    ("forward", 1000, 1.5, 240.0),
    ("backward", 1400, 2.0, 600.0),
    ("backward", 1000, 3.0, 480.0),
)
"""A stage at 300 W and 1400 MHz, or half as slow again at 160 W and 1000 MHz."""

TWO_STAGES: tuple[Row, ...] = tuple((stage, *point) for stage in (0, 1) for point in TWO_CLOCKS)
"""With 2 microbatches, plain 1F1B and the highest clock::

    stage 0  F0 0-1  F1 1-2            B0 4-6      B1 7-9
    stage 1          F0 1-2  B0 2-4  F1 4-5  B1 5-7

The iteration takes 9 s; F1 and B0 of stage 0 have 2 s and 1 s to spare, nothing else has any.
"""


def write_profile(path: Path, rows: Iterable[Row], blocking_w: float | None = None) -> Path:
    """A profile without chunks, as Zeus writes it."""
    lines = ["stage,instruction,frequency,time,energy", *(",".join(map(str, row)) for row in rows)]
    if blocking_w is not None:
        lines.append(f"0,blocking,0,1.0,{blocking_w}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


class Shell:
    """Runs ``megatron-energy`` commands; pytest's capsys takes what they print."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def text(self, *arguments: object) -> str:
        """Standard output of a command that succeeds and complains about nothing."""
        assert main([str(argument) for argument in arguments]) == 0
        captured = self.capsys.readouterr()
        assert captured.err == ""
        return captured.out

    def json(self, *arguments: object) -> dict[str, Any]:
        """The one object that the command prints with --json."""
        found: dict[str, Any] = json.loads(self.text(*arguments, "--json"))
        return found

    def complaint(self, *arguments: object) -> str:
        """The one line of a command that is refused with status 2."""
        assert main([str(argument) for argument in arguments]) == 2
        captured = self.capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("megatron-energy: ")
        assert captured.err.endswith("\n")
        assert captured.err.count("\n") == 1
        return captured.err.removeprefix("megatron-energy: ").rstrip("\n")
