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
from megatron_energy.session.exchange import Lost
from megatron_energy.session.measured_session import MeasuredSession
from megatron_energy.session.options import EnergyOptions
from tests.session.facts import job
from tests.session.small_job import MODEL
from tests.session.threads import Meeting, ThreadExchange

FACTS = job(pipeline=1, microbatches=2, **MODEL)
BASELINE = 2


def fails(*_arguments: object) -> None:
    raise KeyError("units")


class BrokenNetwork(ThreadExchange):
    """Works until :attr:`down`."""

    down = False

    def gather(self, item: object) -> list[object] | None:
        if self.down:
            raise RuntimeError("Connection closed by peer [10.0.0.7]:29500")
        return super().gather(item)


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
    yield EmulatedSession(options, FACTS.any, BrokenNetwork(meeting, 0), said.append)
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
    assert said == [
        "maximum clocks from here on: an error in megatron-energy (KeyError: 'units'; see error.txt in the run directory); "
        "nothing more is recorded"
    ]
    assert "in fails" in (tmp_path / "error.txt").read_text()
    assert emulated._directive.phase == "maximum"


@pytest.fixture
def measured(tmp_path: Path, meeting: Meeting, said: list[str], monkeypatch: pytest.MonkeyPatch) -> MeasuredSession:
    """A session of one rank, before its first iteration."""
    meter = SimpleNamespace(open=lambda: None, source_reason="counter", lap=lambda: SimpleNamespace(energy_j=100.0), close=lambda: None)
    monkeypatch.setattr(measured_session, "meter_for", lambda gpu: meter)
    gpu = cast(NvmlGpu, SimpleNamespace(uuid="GPU-0", sm_clock_mhz=lambda: 1410))
    now_s = iter(range(100))
    options = EnergyOptions(policy="measure", directory=str(tmp_path))
    return MeasuredSession(options, FACTS.any, BrokenNetwork(meeting, 0), gpu, said.append, clock=lambda: float(next(now_s)))


def test_reports_of_a_measured_run(
    measured: MeasuredSession, meeting: Meeting, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = measured
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


NETWORK = "the exchange between ranks failed (RuntimeError: Connection closed by peer [10.0.0.7]:29500)"


def test_a_network_that_fails_ends_the_records_of_a_measured_run(
    measured: MeasuredSession, meeting: Meeting, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    del said[:]
    monkeypatch.setattr(measured._exchange, "down", True)
    for number in (1, 2):
        measured.iteration(number, [], False)
        measured.log(number, None)
    assert said == [f"no more records: {NETWORK}"]
    assert measured._readings == [], "what nobody will ask for is not kept"


def test_a_network_that_fails_ends_the_plan_of_an_emulated_run(
    emulated: EmulatedSession, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    iterate(emulated, range(1, 5))
    assert emulated.requests, "the sweep has begun"
    monkeypatch.setattr(emulated._exchange, "down", True)
    iterate(emulated, range(5, 8))
    assert said == [f"maximum clocks from here on: {NETWORK}; nothing more is recorded"]
    assert emulated.requests == {}


def test_a_meter_that_fails_is_told_by_its_rank_where_the_others_wait_for_it(
    measured: MeasuredSession, meeting: Meeting, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    del said[:]
    monkeypatch.setattr(measured._meter, "lap", fails)
    before = meeting.exchanges
    for number in (1, 2):
        measured.iteration(number, [], False)
        measured.log(number, None)
    assert meeting.exchanges - before == 2
    assert said == [
        "no more records: rank 0: an error in megatron-energy (KeyError: 'units'; see error.txt in the run directory)",
    ]


def test_a_gpu_that_fails_in_an_emulated_run_keeps_no_rank_waiting(
    emulated: EmulatedSession, meeting: Meeting, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    iterate(emulated, range(1, 2))
    monkeypatch.setattr(emulated._device, "advance", fails)
    before = meeting.exchanges
    iterate(emulated, range(2, 4))
    assert meeting.exchanges - before == 2 * 3
    assert said[0].startswith("maximum clocks from here on: rank 0: an error in megatron-energy (KeyError: 'units')")


def test_an_error_while_an_error_is_told_keeps_no_rank_waiting_either(
    emulated: EmulatedSession, meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert emulated._home is not None
    monkeypatch.setattr(emulated._home, "settle", fails)
    monkeypatch.setattr(emulated._home.coordinator, "say", fails)
    before = meeting.exchanges
    iterate(emulated, range(1, 4))
    assert meeting.exchanges - before == 3 * 3 and not emulated._talking.failed


def test_a_batch_that_was_lost_ends_the_records_of_a_measured_run(
    measured: MeasuredSession, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    del said[:]
    monkeypatch.setattr(measured._exchange, "gather", lambda _item: [Lost("what a rank hands over cannot be pickled")])
    for number in (1, 2):
        measured.log(number, None)
    assert len(said) == 1 and "ExchangeError: what a rank hands over cannot be pickled" in said[0]


def test_the_end_of_a_session_does_all_that_it_can(
    emulated: EmulatedSession, said: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert emulated._home is not None
    iterate(emulated, range(1, 2))
    monkeypatch.setattr(emulated._device, "close", fails)
    monkeypatch.setattr(emulated._home.coordinator, "finish", fails)
    emulated.close()
    why = "an error in megatron-energy (KeyError: 'units'; see error.txt in the run directory)"
    assert said == [f"rank 0: the end of its emulated GPU: {why}", f"the end of the run: {why}"]
    assert (tmp_path / "summary.json").exists()


def test_a_standard_output_that_nobody_reads_is_no_error_either(measured: MeasuredSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken_pipe(_line: str) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(measured, "_say", broken_pipe)
    monkeypatch.setattr(measured._exchange, "down", True)
    measured.log(1, None)
    monkeypatch.setattr(measured._meter, "close", fails)
    measured.close()
