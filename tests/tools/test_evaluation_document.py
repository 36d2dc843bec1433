"""docs/evaluation.md: its tables can be read, and some of their rows are computed anew."""

import re
from pathlib import Path

import pytest

from tests.source_tree import ROOT
from tests.tools.loading import load_tool

PAGE = ROOT / "docs" / "evaluation.md"

published = load_tool("evaluate_published")
evaluation = load_tool("evaluation")


def rows_of(name: str) -> dict[tuple[str, ...], dict[str, str]]:
    return dict(published.on_page(PAGE, name).cells)


def percents(row: dict[str, str]) -> dict[str, float]:
    """The first number of each cell; seconds and proofs depend on the machine."""
    found = {column: re.match(r"[-+]?\d+(\.\d+)?", cell) for column, cell in row.items() if column not in ("s", "proof")}
    return {column: float(number[0]) for column, number in found.items() if number}


@pytest.mark.parametrize("name", published.SHEETS)
def test_every_table_has_rows_in_their_order(name: str) -> None:
    """Long tables may be done in parts."""
    rows, order = list(rows_of(name)), list(published.SHEETS[name].order)
    assert rows
    assert rows == [key for key in order if key in rows]
    if name not in ("high", "limits", "segments", "straggler"):
        assert rows == order


CHEAP = [
    ("bounds", "GPT-3 V2 M16", 0.011),
    ("bounds", "Bloom V2 M16", 0.011),
    ("operations", "Bloom V2 M48", 0.011),
    ("envpipe", "Bloom V1 M12", 0.011),
    ("frontier-files", "GPT-3 V1 M24", 0.011),
    ("measured", "bert-huge-uncased", 0.011),
]


@pytest.mark.parametrize(("name", "row", "tolerance"), CHEAP, ids=lambda value: str(value).replace(" ", "-"))
def test_rows_are_what_the_planner_gives(data_dir: Path, name: str, row: str, tolerance: float) -> None:
    """``python tools/evaluate_published.py --table NAME --write docs/evaluation.md`` renews a table."""
    sheet = published.SHEETS[name]
    ((key, cells),) = sheet.fill(evaluation.Request(data_dir, sheet.empty(), words=[row]))
    shown = rows_of(name)[key]
    assert shown.keys() == cells.keys()
    assert percents(dict(cells)) == pytest.approx(percents(shown), abs=tolerance)


def test_every_bound_is_proven() -> None:
    for row in rows_of("bounds").values():
        assert float(row["proof"]) < 1e-6


def test_no_plan_is_late() -> None:
    assert {row["slowdown, most"] for row in rows_of("operations").values()} == {"0.000%"}


def test_no_share_is_above_what_is_proven() -> None:
    """A plan with few switches saves no more than the proven limit for so many."""
    limits = rows_of("limits")
    compared = 0
    for key, row in rows_of("segments").items():
        limit = percents(limits.get(key, {}))
        for column, share in percents(row).items():
            if column in limit:
                assert share <= limit[column] + 0.011
                compared += 1
    assert compared > 0
