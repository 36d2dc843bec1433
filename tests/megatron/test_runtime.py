"""What a rank's runtime tells its session and the user, with a stand-in for the session."""

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from megatron_energy.emulation.nvml import CONTROL_VARIABLE
from megatron_energy.megatron import runtime
from megatron_energy.megatron.configuration import OWN_GROUPS
from megatron_energy.records.steps import ClockRequest
from megatron_energy.session.directive import ITERATION_BEGIN
from megatron_energy.session.options import EnergyOptions
from tests.emulated_gpus import emulated_node
from tests.session.facts import job

FACTS = job(pipeline=2, chunks=2, microbatches=8).any


class Session:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.requests = {ITERATION_BEGIN: (ClockRequest(1200),)}
        self.evaluation_requests = {ITERATION_BEGIN: (ClockRequest(0),)}
        self.told: list[Any] = []

    def iteration(self, number: int, program: Any, evaluation: bool) -> None:
        self.told.append((number, evaluation))

    def stale(self, reason: str) -> None:
        self.told.append(reason)

    broken = stale

    def resized(self, microbatches: int) -> None:
        self.told.append(("resized", microbatches))

    def log(self, iteration: int, writer: Any) -> None:
        self.told.append(("log", iteration, writer))

    def close(self) -> None:
        self.told.append("closed")


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    made = Session()
    monkeypatch.setattr(runtime, "_session", lambda options, facts, recorder: made)
    monkeypatch.setattr(runtime, "_on_home_rank", lambda: True)
    monkeypatch.setattr(runtime, "_megatron_iteration", lambda: None)
    monkeypatch.delitem(sys.modules, runtime.TRAINING_LOOP, raising=False)
    return made


@pytest.fixture
def energy(session: Session) -> runtime.EnergyRuntime:
    return runtime.EnergyRuntime(EnergyOptions(policy="segments", device="emulated"))


def test_the_sessions_requests_are_handed_on(energy: runtime.EnergyRuntime, session: Session) -> None:
    energy.on_schedule(FACTS)
    assert (energy.requests, energy.evaluation_requests) == ({}, {})
    energy.on_iteration([], False)
    assert (energy.requests, energy.evaluation_requests) == (session.requests, session.evaluation_requests)
    assert session.told == [(1, False)]


def test_what_a_log_interval_changes_holds_from_the_next_iteration_on(energy: runtime.EnergyRuntime, session: Session) -> None:
    energy.on_schedule(FACTS)
    energy.on_iteration([], False)
    session.requests = {ITERATION_BEGIN: (ClockRequest(990),)}
    energy.on_log(1, None)
    assert energy.requests == session.requests


def test_nothing_begins_after_the_end(energy: runtime.EnergyRuntime, session: Session) -> None:
    """A trainer may detach the scheduler and go on."""
    energy.on_schedule(FACTS)
    energy.on_iteration([], False)
    assert energy.requests
    energy.close()
    assert (energy.requests, energy.evaluation_requests) == ({}, {})
    energy.on_schedule(replace(FACTS, microbatches=16))
    energy.on_iteration([], False)
    early = runtime.EnergyRuntime(energy.options)
    early.close()
    early.on_schedule(FACTS)
    early.on_iteration([], False)
    assert session.told == [(1, False), "closed"] and early.requests == {}


def test_changed_facts_are_named(energy: runtime.EnergyRuntime, session: Session) -> None:
    energy.on_schedule(FACTS)
    energy.on_schedule(replace(FACTS, microbatches=16, sequence_length=32))
    energy.on_schedule(FACTS)
    assert session.told == [
        "microbatches changed from 8 to 16, sequence_length changed from 0 to 32 during the run",
        "microbatches changed from 16 to 8, sequence_length changed from 32 to 0 during the run",
    ]


def test_another_number_of_microbatches_is_a_ramp_up(energy: runtime.EnergyRuntime, session: Session) -> None:
    energy.on_schedule(FACTS)
    energy.on_schedule(replace(FACTS, microbatches=16))
    assert session.told == [("resized", 16)]
    assert energy.requests == session.requests, "what was planned for the former number is not requested any more"


def test_an_evaluation_before_training_is_nobodys_business(energy: runtime.EnergyRuntime, session: Session) -> None:
    energy.on_iteration([], True)
    energy.on_log(0, None)
    assert session.told == []


def test_scripts_with_a_loop_of_their_own_log_now_and_then(energy: runtime.EnergyRuntime, session: Session) -> None:
    energy.on_schedule(FACTS)
    for _ in range(20):
        energy.on_iteration([], False)
        energy.on_iteration([], True)
    assert [told for told in session.told if told[0] == "log"] == [("log", 10, None), ("log", 20, None)]


def test_megatrons_loop_logs_by_itself(energy: runtime.EnergyRuntime, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, runtime.TRAINING_LOOP, ModuleType(runtime.TRAINING_LOOP))
    energy.on_schedule(FACTS)
    for _ in range(20):
        energy.on_iteration([], False)
    assert session.told == [(number, False) for number in range(1, 21)]


def test_what_prevents_a_session_is_said_once(energy: runtime.EnergyRuntime, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        energy.on_broken(OWN_GROUPS)
    assert capsys.readouterr().out == f"megatron-energy: clocks are left as they are, nothing is measured: {OWN_GROUPS}\n"


def test_iterations_that_never_end_are_said_once(
    energy: runtime.EnergyRuntime, session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    energy.on_schedule(FACTS)
    for _ in range(3):  # gradients added up over several calls, then a step
        energy.on_broken("twice")
        energy.on_iteration([], False)
    assert capsys.readouterr().out == ""
    for _ in range(3 * runtime.UNENDED):
        energy.on_broken("twice")
    assert capsys.readouterr().out == "megatron-energy: clocks are left as they are, nothing is measured: twice\n"


def test_where_clocks_cannot_be_changed_that_is_said_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MEGATRON_ENERGY_CLOCKD", str(tmp_path / "no.sock"))
    options = EnergyOptions(policy="segments", device="nvml", directory=str(tmp_path / "energy"))
    with emulated_node(tmp_path / "node"):
        runtime.check(options)
        assert capsys.readouterr().out == ""
        monkeypatch.setenv(CONTROL_VARIABLE, "no")
        runtime.check(options)
        said = capsys.readouterr().out
        runtime.check(replace(options, policy="maximum"))
        assert capsys.readouterr().out == ""
    assert said == (
        f"megatron-energy: clocks will be left as they are, energy is measured only: no clockd at {tmp_path / 'no.sock'}: "
        "start it (docs/clockd.md), or mount its socket into the container; emulated: control is not allowed\n"
    )
