"""The synthetic corpus."""

import re
from pathlib import Path

import pytest

from scripts import make_corpus


def test_the_same_seed_gives_the_same_bytes_and_a_longer_corpus_begins_with_a_shorter_one() -> None:
    text = make_corpus.corpus(5000, seed=1)
    assert text == make_corpus.corpus(5000, seed=1)
    assert make_corpus.corpus(20_000, seed=1).startswith(text)
    assert make_corpus.corpus(5000, seed=2) != text


def test_it_has_the_size_asked_for_in_whole_lines() -> None:
    text = make_corpus.corpus(3000, seed=0)
    assert 3000 <= len(text) < 3500
    assert text.endswith(b".\n") and text.isascii()


def test_its_sums_are_right() -> None:
    text = make_corpus.corpus(50_000, seed=0).decode()
    sums = re.findall(r"(\d+) \+ (\d+) = (\d+)", text)
    assert len(sums) > 100
    assert all(int(a) + int(b) == int(c) for a, b, c in sums)
    words = re.findall(r"(\w+) and (\w+) make (\w+)", text)
    values = {word: value for value, word in enumerate(make_corpus.NUMBERS)}
    assert len(words) > 100
    assert all(values[a] + values[b] == values[c] for a, b, c in words)


def test_the_command_writes_the_file(tmp_path: Path) -> None:
    assert make_corpus.main(["--bytes", "100", "--seed", "3", "--out", str(tmp_path / "c.txt")]) == 0
    assert (tmp_path / "c.txt").read_bytes() == make_corpus.corpus(100, 3)


def test_mistakes_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make_corpus.main(["--out", str(tmp_path / "nowhere" / "c.txt")]) == 2
    assert "error: cannot write" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        make_corpus.main(["--bytes", "0", "--out", str(tmp_path / "c.txt")])
    assert stopped.value.code == 2
