"""What tools/device_check.py finds: one line each, for people and as JSON."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One figure or fact.

    Attributes:
        part: which part of the check.
        name: what it is, with its unit.
        value: the figure or text.
        ok: whether it is as it should be; None: it is information.
        note: what it was held against.
    """

    part: str
    name: str
    value: Any
    ok: bool | None = None
    note: str = ""

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {"part": self.part, "name": self.name, "value": self.value, "ok": self.ok, "note": self.note}


def as_table(findings: list[Finding]) -> str:
    """A Markdown table."""
    marks = {None: "", True: "ok", False: "**FAILED**"}
    rows = [f"| {f.part} | {f.name} | {_text(f.value)} | {marks[f.ok]} | {f.note} |" for f in findings]
    return "\n".join(["| part | what | value | | note |", "|---|---|---|---|---|", *rows])


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("|", "/")
