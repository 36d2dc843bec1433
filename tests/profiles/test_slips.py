"""Slips in a profile that every value by itself would pass, and what its further columns say."""

from pathlib import Path

import pytest

from megatron_energy.errors import UserError
from megatron_energy.profiles.files import load_profile

LINES = ("stage,instruction,frequency,time,energy", "0,forward,1400,1.0,300", "0,forward,1000,1.5,240", "0,backward,1400,2.0,600")


@pytest.mark.parametrize(
    ("line", "text", "said"),
    [
        (0, "stage,instruction,frequency,time,time,energy", r"line 1: column time is there twice: keep one of the two$"),
        (1, "0,forward,1410000000,1.0,300", r"line 2, column frequency: '1410000000' is no clock of a GPU: give it in MHz$"),
        (1, "0,forward,1e30,1.0,300", r"line 2, column frequency: '1e30' is no clock of a GPU: give it in MHz$"),
    ],
)
def test_slips_of_the_pen(tmp_path: Path, line: int, text: str, said: str) -> None:
    path = tmp_path / "profile.csv"
    path.write_text("\n".join([*LINES[:line], text, *LINES[line + 1 :]]) + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=said):
        load_profile(path)


@pytest.mark.parametrize(
    ("values", "fact"), [(("True",), True), (("true", "False"), True), (("false",), False)], ids=["all", "in part", "none"]
)
def test_a_profile_that_is_emulated_says_so(tmp_path: Path, values: tuple[str, ...], fact: bool) -> None:
    path = tmp_path / "profile.csv"
    marked = [f"{row},{values[number % len(values)]},nan" for number, row in enumerate(LINES[1:])]
    path.write_text("\n".join([f"{LINES[0]},emulated,temperature", *marked]) + "\n", encoding="utf-8")
    provenance = load_profile(path).provenance
    assert provenance["emulated"] is fact
    assert provenance["temperature"] == "nan"  # a text: JSON has no such number
