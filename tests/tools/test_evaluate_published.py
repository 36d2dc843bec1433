"""The evaluation's command line, and tables of cases small enough to compute here."""

from pathlib import Path

import pytest

from tests.tools.loading import load_tool

published = load_tool("evaluate_published")
evaluation = load_tool("evaluation")


def write_page(folder: Path, *names: str) -> Path:
    page = folder / "page.md"
    page.write_text("\n".join(f"<!-- table: {name} -->\n<!-- end: {name} -->" for name in names), encoding="utf-8")
    return page


def test_the_folder_has_to_be_given(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("MEGATRON_ENERGY_DATA", raising=False)
    assert published.main(["--table", "bounds"]) == 2
    assert "set MEGATRON_ENERGY_DATA" in capsys.readouterr().err


def test_a_folder_without_the_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MEGATRON_ENERGY_DATA", str(tmp_path))
    assert published.main(["--table", "measured"]) == 2
    assert "No such file" in capsys.readouterr().err


def test_a_part_of_a_table_is_written_and_the_rest_kept(data_dir: Path, tmp_path: Path) -> None:
    page = write_page(tmp_path, "bounds", "operations")
    assert published.main(["--table", "bounds", "--case", "GPT-3 M12", "--write", str(page)]) == 0
    assert published.main(["--table", "bounds", "--case", "Bloom M12", "--write", str(page)]) == 0
    table = published.on_page(page, "bounds")
    assert list(table.cells) == [("GPT-3 V1 M12",), ("Bloom V1 M12",)]
    assert [row["ideal"] for row in table.cells.values()] == ["16.06", "12.47"]
    assert published.on_page(page, "operations").cells == {}


def request(known: object, **settings: object) -> object:
    return evaluation.Request(Path(), known, **settings)


def test_which_cells_are_wanted() -> None:
    known = published.SHEETS["segments"].empty()
    key = ("GPT-3 V2 M16", "overlap")
    known.put(key, {"K 8": "95.00 (18 s)"})
    assert request(known).wants(key, "K 8")
    assert not request(known, missing=True).wants(key, "K 8")
    assert request(known, missing=True).wants(key, "K 4")
    assert request(known, words=["V2 M16"]).wants(key, "K 8")
    assert request(known, words=["Bloom", "GPT-3 overlap"]).wants(key, "K 8")
    assert not request(known, words=["GPT-3 M1"]).wants(key, "K 8")
    assert not request(known, columns=["K 4"]).wants(key, "K 8")
    assert not request(known, missing=True, columns=["K 8"]).wants_row(key)


def test_a_plan_for_ideal_transfers_is_late_with_real_ones(data_dir: Path) -> None:
    sheet = published.SHEETS["ideal-in-modes"]
    ((key, row),) = sheet.fill(evaluation.Request(data_dir, sheet.empty(), words=["GPT-3 V2 M16"]))
    assert key == ("GPT-3 V2 M16",)
    late = {mode: float(row[mode].split("+")[1].rstrip("%")) for mode in ("overlap", "overlap-wait", "batched")}
    assert late["overlap"] == pytest.approx(1.4, abs=0.3)
    assert late["overlap-wait"] == pytest.approx(8, abs=1)
    assert late["batched"] == pytest.approx(13.5, abs=1)
    assert row["ideal"].endswith("at 0.00%")


def test_published_frontiers_promise_what_cannot_be(data_dir: Path) -> None:
    """Their times are rounded down, so that some points are below the least energy that any plan needs."""
    sheet = published.SHEETS["frontier-files"]
    ((_, row),) = sheet.fill(evaluation.Request(data_dir, sheet.empty(), words=["GPT-3 M12"]))
    assert (int(row["points"]), int(row["faster than possible"])) == (64, 2)
    assert int(row["below the bound"]) > 0
    assert float(row["claimed at the 1.2x straggler"]) == pytest.approx(26.0, abs=0.1)
    assert float(row["bound there"]) == pytest.approx(27.39, abs=0.01)
