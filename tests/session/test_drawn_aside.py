"""The time line in a process of its own: the same picture, while nobody waits; what fails or takes too long is said."""

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from megatron_energy.observe.phases import Windows
from megatron_energy.records.iteration import RankIteration, Span
from megatron_energy.session import drawn_aside
from megatron_energy.session.drawing import Drawing, Picture
from megatron_energy.session.drawn_aside import DrawnAside
from megatron_energy.session.findings import Findings, IterationData
from megatron_energy.session.options import EnergyOptions
from megatron_energy.session.reporting import Reporter
from tests.observe.test_tensorboard import MemoryWriter
from tests.session.facts import job
from tests.session.test_reporting import data, summary


def iteration(number: int, clock_mhz: int = 1410) -> IterationData:
    start_s = 2.0 * number
    spans = [Span("forward", 0, 0, start_s, start_s + 0.5, clock_mhz), Span("backward", 0, 0, start_s + 0.5, start_s + 2.0, clock_mhz)]
    return IterationData([RankIteration(rank, number, start_s, start_s + 2.0, 100.0, spans) for rank in range(2)], [])


@pytest.fixture
def picture(tmp_path: Path) -> Picture:
    (tmp_path / "aside").mkdir()
    return Drawing(job(pipeline=2), "a job", 0.1).picture(tmp_path / "aside", iteration(1), iteration(5, 1200), Windows())


@pytest.fixture
def said() -> list[str]:
    return []


def test_it_is_the_picture_that_would_have_been_drawn_here(picture: Picture, said: list[str], tmp_path: Path) -> None:
    aside = DrawnAside(said.append)
    aside.begin(picture)
    aside.finish()
    (drawn,) = aside.drawn()
    here = replace(picture, directory=tmp_path / "here")
    here.directory.mkdir()
    assert np.array_equal(drawn, here.draw()) and drawn.shape[1:] == (1600, 3) and len(np.unique(drawn)) > 10
    assert sorted(path.name for path in picture.directory.iterdir()) == ["timeline.png", "trace.json"], "and nothing else"
    assert (picture.directory / "trace.json").read_bytes() == (here.directory / "trace.json").read_bytes()
    assert said == aside.drawn() == []


def test_a_first_picture_at_the_end_needs_no_new_thread(picture: Picture, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions close at the end of the process, when Python 3.12 starts none any more."""
    aside = DrawnAside(said.append)
    monkeypatch.setattr(drawn_aside, "_PROGRAM", "raise MemoryError('it was begun')")
    monkeypatch.setattr(threading.Thread, "start", lambda thread: pytest.fail("can't create new thread at interpreter shutdown"))
    aside.begin(picture)
    aside.finish()
    assert said == ["no new time line: MemoryError: it was begun"]


def test_files_in_the_working_directory_are_no_modules(
    picture: Picture, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dataclasses.py").write_text("raise ImportError('a file of the user')\n")
    monkeypatch.chdir(tmp_path)
    aside = DrawnAside(said.append)
    aside.begin(picture)
    aside.finish()
    assert said == [] and len(aside.drawn()) == 1


def test_a_process_that_fails_is_said(picture: Picture, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawn_aside, "_PROGRAM", "raise MemoryError('no room')")
    aside = DrawnAside(said.append)
    aside.begin(picture)
    aside.finish()
    assert said == ["no new time line: MemoryError: no room"]
    assert aside.drawn() == list(picture.directory.iterdir()) == []


def test_a_directory_that_is_gone_is_said(picture: Picture, said: list[str]) -> None:
    picture.directory.rmdir()
    aside = DrawnAside(said.append)
    aside.begin(picture)
    aside.finish()
    assert len(said) == 1 and said[0].startswith("no new time line: FileNotFoundError: ")


def test_what_takes_too_long_is_given_up_and_said(picture: Picture, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    started = threading.Event()
    monkeypatch.setattr(drawn_aside, "_PROGRAM", "import time; time.sleep(600)")
    aside = DrawnAside(said.append)
    start = aside._start
    monkeypatch.setattr(aside, "_start", lambda name: (start(name), started.set())[0])
    aside.begin(picture)
    aside.begin(picture)
    assert started.wait(60)
    aside.finish(limit_s=0.0)
    assert said == ["no new time line: not finished after 0 s"]
    assert aside._background.idle(60), "the process was ended, and the next one not begun"
    assert len(said) == 1 and aside.drawn() == []


def test_a_log_interval_does_not_draw(tmp_path: Path, said: list[str]) -> None:
    findings = Findings(baseline=[iteration(2)])
    reporter = Reporter(
        EnergyOptions(policy="segments", directory=str(tmp_path)), job(pipeline=2), findings, "a job", said.append, aside=True
    )
    begun: list[Picture] = []
    images: list[Any] = []
    reporter._aside = SimpleNamespace(  # type: ignore[assignment]
        begin=begun.append, drawn=lambda: [images.pop() for _ in images[:]], finish=lambda: images.append(np.ones((2, 3, 3), np.uint8))
    )
    writer = MemoryWriter()
    for number in range(1, 7):
        reporter.add(summary(number, "baseline" if number < 3 else "planned"), iteration(number))
        reporter.write(number, writer)
    assert [(p.baseline[0].iteration, p.planned[0].iteration) for p in begun] == [(2, 4)], "once per plan"
    assert "energy/timeline (emulated)" not in writer.texts and reporter.plan_facts().timeline_path is None
    images.append(np.zeros((2, 3, 3), np.uint8))
    reporter.add(summary(7, "planned"), data(7))
    reporter.write(7, writer)
    assert writer.texts["energy/timeline (emulated)"] == "picture at 7"
    report = reporter.finish()
    assert len(begun) == 2, "with the means of the whole run in its headings"
    assert report is not None and report.facts.timeline_path == tmp_path / "timeline.png"
    assert said == []
