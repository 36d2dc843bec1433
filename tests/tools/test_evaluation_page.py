"""Tables on a page: read, filled cell by cell, and put back without touching anything else."""

from pathlib import Path

import pytest

from megatron_energy.errors import UserError
from tests.tools.loading import load_tool

page_tool = load_tool("evaluation_page")

PAGE = """# Title

| case | left alone |
| --- | --- |

<!-- table: bounds -->
| case | ideal | batched |
| --- | ---: | ---: |
| GPT-3 V1 M12 | 16.06 | - |
<!-- end: bounds -->

Text \\1 below.
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(PAGE, encoding="utf-8")
    return path


def table_of(page: Path) -> object:
    table = page_tool.Table(("case",), ("ideal", "batched"))
    table.read(page_tool.section(page, "bounds").splitlines())
    return table


def test_a_table_reads_what_it_wrote() -> None:
    table = page_tool.Table(("case", "p2p"), ("K 8",))
    table.put(("GPT-3 V1 M12", "ideal"), {"K 8": "93.97 (18 s)"})
    table.put(("GPT-3 V1 M16", "ideal"), {})
    again = page_tool.Table(("case", "p2p"), ("K 8", "K 12"))
    again.read(table.lines())
    assert again.cells == {
        ("GPT-3 V1 M12", "ideal"): {"K 8": "93.97 (18 s)"},
        ("GPT-3 V1 M16", "ideal"): {"K 8": "-"},
    }
    assert again.has(("GPT-3 V1 M12", "ideal"), "K 8")
    assert not again.has(("GPT-3 V1 M16", "ideal"), "K 8")
    assert not again.has(("GPT-3 V1 M12", "ideal"), "K 12")


def test_a_table_with_other_keys_is_not_taken_over() -> None:
    table = page_tool.Table(("model",), ("ideal",))
    table.read(PAGE.splitlines())
    assert table.cells == {}


def test_cells_are_added_to_a_page(page: Path) -> None:
    table = table_of(page)
    table.put(("GPT-3 V1 M12",), {"batched": "16.05"})
    page_tool.replace_section(page, "bounds", "\n".join(table.lines()) + "\n")
    assert page.read_text(encoding="utf-8") == PAGE.replace("| 16.06 | - |", "| 16.06 | 16.05 |")


def test_rows_that_a_table_no_longer_has_go(page: Path) -> None:
    table = table_of(page)
    table.put(("new",), {"ideal": "1"})
    table.sort([("new",), ("never computed",)])
    assert table.lines()[2:] == ["| new | 1 | - |"]


def test_a_page_without_the_markers(page: Path) -> None:
    with pytest.raises(UserError, match="has no place for the table: put the lines '<!-- table: limits -->'"):
        page_tool.section(page, "limits")
    with pytest.raises(UserError, match="cannot read"):
        page_tool.section(page.parent / "none.md", "limits")
