"""The start of a run on (emulated) GPUs of this host: who controls, what is agreed, and what keeps a run to measuring."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from megatron_energy.emulation.fault_rules import Fail
from megatron_energy.emulation.faults import inject
from megatron_energy.emulation.nvml import CONTROL_VARIABLE
from megatron_energy.errors import UserError
from megatron_energy.gpus.host_events import HostEventSource
from megatron_energy.gpus.latency import LatencyProbe
from megatron_energy.gpus.nvml import NvmlGpu
from megatron_energy.observe.run_directory import RunLock
from megatron_energy.session import controlled_start, lead
from megatron_energy.session.actuation import Hold, Way
from megatron_energy.session.controlled_session import ControlledSession
from megatron_energy.session.controlled_start import Work
from megatron_energy.session.measured_session import MeasuredSession
from megatron_energy.session.options import EnergyOptions
from tests.emulated_gpus import EmulatedNode, emulated_node
from tests.session.facts import job
from tests.session.threads import Meeting, ThreadExchange, on_all_ranks

RANKS = 2
FACTS = job(pipeline=RANKS, chunks=2, microbatches=4, core_version="0.19.2")


class Start:
    """Starts the ranks of a job as threads; the GPUs are emulated."""

    def __init__(self, folder: Path, node: EmulatedNode) -> None:
        self.node = node
        self.said: list[str] = []
        self.options = EnergyOptions(policy="segments", device="nvml", directory=str(folder / "energy"))
        self.gpus = [0, 1]
        self.exchanges: list[ThreadExchange] = []
        self.sessions: list[Any] = []

    def __call__(self, **options: Any) -> list[Any]:
        meeting = Meeting(RANKS)
        self.exchanges = [ThreadExchange(meeting, rank) for rank in range(RANKS)]
        self.sessions = on_all_ranks([self._rank(rank, replace(self.options, **options)) for rank in range(RANKS)])
        return self.sessions

    def _rank(self, rank: int, options: EnergyOptions) -> Callable[[], Any]:
        gpu, work = NvmlGpu(self.node.gpus[self.gpus[rank]].uuid), Work(HostEventSource())
        facts = replace(FACTS.ranks[rank], local_rank=rank)
        return lambda: controlled_start.start(options, facts, self.exchanges[rank], gpu, work, self.said.append)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """No clockd, and no watchdog either: holds are the emulated driver's own. Clocks of the GPUs pass quickly."""
    monkeypatch.setenv("MEGATRON_ENERGY_CLOCKD", str(tmp_path / "no.sock"))
    monkeypatch.setattr("megatron_energy.session.actuation.Watchdog", FakeWatchdog)
    FakeWatchdog.closed = 0
    with emulated_node(tmp_path / "node", f"a100-sxm4-80gb:{RANKS}") as node:
        for gpu in node.gpus:
            gpu.set_load(0.5)
        probe = partial(LatencyProbe, clock=node.clock, sleep=node.clock.sleep)
        monkeypatch.setattr(lead, "LatencyProbe", probe)
        starting = Start(tmp_path, node)
        yield starting
        for session in starting.sessions:
            for part in ("controller", "_instruments", "_hold"):
                if hasattr(session, part):
                    getattr(session, part).close()


class FakeWatchdog:
    alive = True
    closed = 0

    def guard(self, uuid: str) -> None:
        self.guarded = uuid

    def close(self) -> int:
        FakeWatchdog.closed += 1
        return 0


def test_a_controlled_run_says_how_clocks_are_changed_and_what_a_kill_means(start: Start) -> None:
    sessions = start()
    assert all(isinstance(session, ControlledSession) for session in sessions)
    assert start.said[0].startswith("clock switches: ") and start.said[0].endswith(" ms early (emulated GPUs)")
    assert start.said[1] == (
        "2 emulated GPUs: no clockd here: clocks are set through the driver, and a watchdog process restores them when a rank is killed; "
        "a SIGKILL of the whole control group leaves them locked until `nvidia-smi -rgc`"
    )
    assert [start.node.node.gpu(index).locked_max_mhz for index in range(RANKS)] == [0, 0], (
        "the measurement of latencies has given them back"
    )
    assert sessions[RANKS - 1]._conductor.coordinator.planner.lead_s > 0.01, "two calls of 5.75 ms one after another"


def test_without_permission_energy_is_measured_and_the_reason_said(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONTROL_VARIABLE, "no")
    assert all(isinstance(session, MeasuredSession) for session in start())
    assert len(start.said) == 1
    assert start.said[0].startswith("measuring 2 emulated GPUs (energy counter); clocks are left as they are (rank 0: no clockd at ")
    assert start.said[0].endswith("; emulated: control is not allowed)")


def test_a_clock_that_somebody_has_locked_is_left_locked(start: Start) -> None:
    start.node.gpus[1].node.gpu(1)
    NvmlGpu(start.node.gpus[1].uuid).set_sm_clock_range(210, 1095)
    start.node.clock.sleep(1.0)
    assert all(isinstance(session, MeasuredSession) for session in start())
    assert start.said[0].endswith(
        "clocks are left as they are (rank 1: somebody has locked its clock (clock 1095 of 1410 MHz under load, event reasons 0x2): "
        "a lock cannot be read, so it could not be put back after the run)"
    )
    assert start.node.node.gpu(1).locked_max_mhz == 1095


def test_a_driver_that_refuses_the_first_request_has_the_last_word(start: Start) -> None:
    with inject(Fail("nvmlDeviceSetGpuLockedClocks", gpu=1, error="NO_PERMISSION")):
        sessions = start()
    assert all(isinstance(session, MeasuredSession) for session in sessions)
    assert "clocks are left as they are (rank 1: nvmlDeviceSetGpuLockedClocks: Insufficient Permissions" in start.said[0]
    assert FakeWatchdog.closed == RANKS


def test_ranks_that_share_a_gpu_are_measured_only(start: Start) -> None:
    start.gpus = [0, 0]
    assert all(isinstance(session, MeasuredSession) for session in start())
    assert "several ranks share a GPU, whose clock can follow only one of them" in start.said[0]


def test_rules_that_leave_one_clock_are_no_control(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controlled_start, "take", lambda *_: Hold(Way("clockd", clocks_mhz=(1410, 1410))))
    assert all(isinstance(session, MeasuredSession) for session in start())
    assert "the GPUs have no two clocks in common" in start.said[0]


def test_gpus_of_different_kinds_are_measured_only() -> None:
    offers = [controlled_start._Offer(Way("nvml"), f"GPU-{top}", "a GPU", (top, 1200, 900)) for top in (1410, 1980)]
    assert controlled_start._refusal(offers, {1200, 900}) == (
        "the GPUs have different maximum clocks (1410 and 1980 MHz): a plan needs GPUs of one kind"
    )


@pytest.mark.parametrize("policy", ["maximum", "dry-run"])
def test_policies_that_request_nothing_take_no_gpu(start: Start, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONTROL_VARIABLE, "no")
    sessions = start(policy=policy)
    assert all(isinstance(session, ControlledSession) for session in sessions)
    planned = ["clock switches: not measured in a dry run; raises are planned 20 ms early, by published figures"]
    assert start.said == [*(planned if policy == "dry-run" else []), "2 emulated GPUs: clocks are not changed"]
    assert sessions[RANKS - 1]._conductor.coordinator.planner.lead_s == pytest.approx(0.020 if policy == "dry-run" else 0.0), (
        "two turns of 6 ms, and 8 ms until in force"
    )
    assert [start.node.node.gpu(index).locks_set for index in range(RANKS)] == [0, 0]


def test_a_plan_that_cannot_be_read_is_refused_on_every_rank(start: Start, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no-plan\.json"):
        start(plan=str(tmp_path / "no-plan.json"))
    assert FakeWatchdog.closed == RANKS


def test_a_defect_of_ours_leaves_no_rank_waiting(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise KeyError("units")

    monkeypatch.setattr(controlled_start, "Timetable", fails)
    with pytest.raises((KeyError, UserError), match="units"):
        start()
    assert FakeWatchdog.closed == RANKS


def test_a_measured_run_tells_why_in_its_report(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONTROL_VARIABLE, "no")
    home = start()[RANKS - 1]
    assert home._reporter.plan_facts().off_reason.endswith("; emulated: control is not allowed")


def test_a_run_directory_in_use_ends_every_rank_of_a_measured_run(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONTROL_VARIABLE, "no")
    lock = RunLock(start.options.run_dir, start.said.append)
    try:
        told = _ends_of_ranks(start)
    finally:
        lock.release()
    assert len(told) == RANKS and len({str(error) for error in told}) == 1


def test_a_gpu_that_cannot_be_measured_ends_every_rank(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONTROL_VARIABLE, "no")
    monkeypatch.setattr(MeasuredSession, "_open_meter", lambda self: "no meter" if self._facts.rank == 0 else None)
    assert [str(error) for error in _ends_of_ranks(start)] == ["no meter"] * RANKS


def _ends_of_ranks(start: Start) -> list[UserError]:
    """How each rank's start fails."""

    def failure(rank: int) -> UserError:
        with pytest.raises(UserError) as caught:
            start._rank(rank, start.options)()
        return caught.value

    meeting = Meeting(RANKS)
    start.exchanges = [ThreadExchange(meeting, rank) for rank in range(RANKS)]
    return on_all_ranks([partial(failure, rank) for rank in range(RANKS)])


def test_a_profile_that_does_not_fit_is_refused_on_every_rank(start: Start, tmp_path: Path) -> None:
    profile = tmp_path / "profile.csv"
    profile.write_text("stage,instruction,frequency,time,energy\n0,forward,1410,0.1,30\n0,backward,1410,0.2,60\n")
    with pytest.raises(UserError, match="stage 1"):
        start(profile=str(profile))
    assert FakeWatchdog.closed == RANKS
