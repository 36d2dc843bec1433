"""A defect of ours while records are written: training goes on, ranks still meet, and the user is told once."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from megatron_energy.emulation.install import uninstall
from megatron_energy.gpus.nvml import NvmlGpu
from megatron_energy.observe.journal import Journal
from megatron_energy.pipeline.programs import program
from megatron_energy.session import measured_session
from megatron_energy.session.emulated_session import EmulatedSession
from megatron_energy.session.measured_session import MeasuredSession
from megatron_energy.session.options import EnergyOptions
from tests.session.facts import job
from tests.session.small_job import MODEL
from tests.session.threads import Meeting, ThreadExchange

FACTS = job(pipeline=1, microbatches=2, **MODEL)
BASELINE = 2


def fails(*_arguments: object) -> None:
    raise KeyError("units")


@pytest.fixture
def meeting() -> Meeting:
    """Of a job of one rank; counts the exchanges."""
    return Meeting(1)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def emulated(tmp_path: Path, meeting: Meeting, said: list[str]) -> Iterator[EmulatedSession]:
    """A session of one rank, before its first iteration."""
    options = EnergyOptions(
        policy="segments",
        directory=str(tmp_path),
        device="emulated",
        emulated_model="gpt3-1.3b",
        baseline_iterations=BASELINE,
        sweep_clocks=2,
    )
    yield EmulatedSession(options, FACTS.any, ThreadExchange(meeting, 0), said.append)
    uninstall()


def iterate(session: EmulatedSession, numbers: range) -> None:
    steps = program(FACTS.schedule("overlap"), 0, grad_sync=True, optimizer=True)
    for number in numbers:
        session.iteration(number, steps, False)


@pytest.mark.parametrize("failing", ["add", "write"])
def test_reports_of_an_emulated_run(
    emulated: EmulatedSession, meeting: Meeting, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    assert emulated._home is not None
    iterate(emulated, range(1, 3))
    emulated.log(2, None)
    before = meeting.exchanges
    iterate(emulated, range(3, 4))
    usual = meeting.exchanges - before
    monkeypatch.setattr(emulated._home.reporter, failing, fails)
    for number in (4, 5, 6):
        before = meeting.exchanges
        iterate(emulated, range(number, number + 1))
        emulated.log(number, None)
        assert meeting.exchanges - before == usual
    assert said == ["maximum clocks from here on: an error in megatron-energy (KeyError: 'units'; see error.txt in the run directory)"]
    assert "in fails" in (tmp_path / "error.txt").read_text()
    assert emulated._directive.phase == "maximum"


def test_reports_of_a_measured_run(tmp_path: Path, meeting: Meeting, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    meter = SimpleNamespace(open=lambda: None, source_reason="counter", lap=lambda: SimpleNamespace(energy_j=100.0), close=lambda: None)
    monkeypatch.setattr(measured_session, "meter_for", lambda gpu: meter)
    gpu = cast(NvmlGpu, SimpleNamespace(uuid="GPU-0", sm_clock_mhz=lambda: 1410))
    now_s = iter(range(100))
    options = EnergyOptions(policy="measure", directory=str(tmp_path))
    session = MeasuredSession(options, FACTS.any, ThreadExchange(meeting, 0), gpu, said.append, clock=lambda: float(next(now_s)))
    session.iteration(1, [], False)
    session.log(1, None)
    del said[:]
    monkeypatch.setattr(measured_session, "summarise", fails)
    before = meeting.exchanges
    for number in (2, 3, 4):
        session.iteration(number, [], False)
        session.log(number, None)
    assert meeting.exchanges - before == 3, "one at each log interval, as before"
    assert said == ["no more records: an error in megatron-energy (KeyError: 'units'; see error.txt in the run directory)"]
    assert "in fails" in (tmp_path / "error.txt").read_text()
    assert [s.iteration for s in Journal(tmp_path).read()] == [1]
