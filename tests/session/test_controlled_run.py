"""Ranks that follow timetables and talk at log intervals only: the course of a run, and what ends it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from megatron_energy.observe.journal import Journal
from megatron_energy.records.steps import ClockRequest
from megatron_energy.session.conductor import Batch
from megatron_energy.session.control import write_control
from megatron_energy.session.directive import ITERATION_BEGIN, constant_clock
from tests.session.launched import UNTIL_PLAN
from tests.session.simulated import SimulatedRun
from tests.session.small_job import FACTS, OPTIONS
from tests.session.timetable_job import BASELINE, PLANNED_FROM, Job

SWEEP = ["sweep"] * 6
BEFORE_PLAN = [*BASELINE, *["sweep"] * 2, *SWEEP, *["planning"] * 2]
"""The power cap holds this job's clocks in the baseline. That is told at iteration 4, so another sweep begins at 5, and its end at 10
is told at 12."""


def test_phases_change_at_the_same_iteration_without_a_message(new_job: Callable[..., Job]) -> None:
    job = new_job(capped=False)
    job.iterate(7)
    assert job.meeting.exchanges == 2  # one log interval: what happened, and what comes next
    job.iterate(9)
    assert job.phases == BASELINE + SWEEP + ["planned"] * 8
    assert job.meeting.exchanges == 2 * 4


def test_where_the_power_cap_holds_clocks_the_sweep_begins_there(new_job: Callable[..., Job]) -> None:
    job = new_job()
    job.iterate(16)
    assert job.phases == [*BEFORE_PLAN, *["planned"] * 4]


def test_what_is_learned_is_what_a_run_with_a_message_per_iteration_learns(new_job: Callable[..., Job], tmp_path: Path) -> None:
    job = new_job()
    job.iterate(16)
    usual = SimulatedRun(OPTIONS, FACTS, FACTS.schedule("overlap"))
    usual.iterate(UNTIL_PLAN)
    ours, theirs = (run.coordinator.findings.planned for run in (job.run, usual))
    assert ours is not None and theirs is not None
    assert ours.expected_time_s == pytest.approx(theirs.expected_time_s, rel=1e-3)
    assert ours.bound_saved_percent == pytest.approx(theirs.bound_saved_percent, abs=0.1), "learned from other steps of the counters"
    summaries = {s.iteration: s for s in Journal(job.options.run_dir).read()}
    assert summaries[16].phase == "planned" and summaries[16].saved_percent is not None and summaries[16].saved_percent > 5
    assert abs(summaries[16].slowdown_percent or 0.0) < 0.5
    assert (tmp_path / "plan.json").exists()


def test_a_plan_that_is_late_finds_the_gpus_at_their_own_clocks(new_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """Log intervals that do not wait: nothing lower than maximum clocks lasts while the plan is made."""
    job = new_job(capped=False)
    monkeypatch.setattr(job.conductor._background, "idle", lambda wait_s: False)
    job.iterate(14)
    assert job.phases == BASELINE + SWEEP + ["planning"] * 6
    assert job.sessions[0].requests == {ITERATION_BEGIN: (ClockRequest(0),)}
    monkeypatch.undo()
    job.conductor._background.idle(60.0)
    job.iterate(6)
    assert job.phases[14:] == ["planning"] * 2 + ["planned"] * 4


def test_a_script_that_does_not_wait_for_the_gpu_hands_the_last_iteration_in_later(new_job: Callable[..., Job]) -> None:
    job = new_job(settled_at_log=False)
    job.iterate(8)
    assert [s.iteration for s in Journal(job.options.run_dir).read()] == list(range(1, 8))
    job.iterate(8)
    assert job.phases == [*BEFORE_PLAN, *["planned"] * 4]


def test_other_sizes_end_the_plan_on_every_rank_at_once(planned: Job) -> None:
    assert any(session.requests for session in planned.sessions)
    for session in planned.sessions:
        session.stale("microbatches changed from 4 to 8 during the run")
        assert session.requests == {} and session.evaluation_requests == {}
    assert [controller.maximum for controller in planned.controllers] == [1, 1]
    planned.sessions[0].request(ClockRequest(900))  # of the iteration that is running
    assert 900 not in planned.controllers[0].asked
    planned.iterate(3)
    assert [line for line in planned.said if "maximum" in line] == [
        "maximum clocks from here on: microbatches changed from 4 to 8 during the run"
    ]
    assert [s.phase for s in Journal(planned.options.run_dir).read()][PLANNED_FROM - 1 :] == ["planned"] + ["maximum"] * 3


def test_one_rank_falls_back_alone(planned: Job) -> None:
    planned.sessions[0].stop("clock control stopped: GPU is lost")
    assert planned.sessions[0].requests == {} and planned.sessions[1].requests
    planned.iterate(3)
    assert [line for line in planned.said if "alone" in line] == [
        "rank 0 alone runs at maximum clocks from here on: clock control stopped: GPU is lost"
    ]
    assert planned.sessions[1].requests, "the other one goes on under the plan"


@pytest.mark.parametrize("before", [1, 6])  # in the baseline; in the sweep
def test_a_rank_that_stops_before_there_is_a_plan_ends_the_way_to_one(new_job: Callable[..., Job], before: int) -> None:
    job = new_job()
    job.iterate(before)
    job.sessions[0].stop("the lease has ended")
    job.iterate(16 - before)
    told = 4 if before < 4 else 8
    assert set(job.phases[told:]) == {"maximum"}, "nobody sweeps low clocks on and on"
    assert job.sessions[1].requests == {ITERATION_BEGIN: (ClockRequest(0),)}
    assert job.conductor.coordinator.findings.off_reason == "rank 0 stopped before there was a plan: the lease has ended"


def test_the_others_keep_their_plan_through_a_new_baseline(plan_of_small_job: Path, patient: None, tmp_path: Path) -> None:
    job = Job(tmp_path, replace(OPTIONS, plan=str(plan_of_small_job), recheck=6))
    job.iterate(PLANNED_FROM)
    job.sessions[0].stop("the lease has ended")
    job.iterate(27)
    again = job.phases[PLANNED_FROM:]
    assert "baseline" in again and again[-4:] == ["planned"] * 4
    assert "planned" in again[again.index("baseline") :]


def test_the_live_switch_is_seen_without_any_iteration_to_go_by(planned: Job, tmp_path: Path) -> None:
    write_control(tmp_path, "drop")
    entries = planned.conductor.take([Batch(), Batch()], 6)
    assert entries is not None and [e[0][1] for e in entries] == [constant_clock("maximum", 0)] * 2
    planned.conductor.take([Batch(), Batch()], 6)
    assert sum(line.startswith("dropped to maximum clocks by ") for line in planned.said) == 1
    write_control(tmp_path, "resume")
    planned.conductor.take([Batch(), Batch()], 6)
    assert [directive.phase for directive in planned.conductor.coordinator.directives] == ["planned"] * 2


def test_a_broken_record_ends_the_plan(planned: Job) -> None:
    planned.sessions[0].broken("a backward ran on an output that no recorded forward made")
    planned.iterate(3)
    assert planned.said[-1] == "maximum clocks from here on: rank 0: a backward ran on an output that no recorded forward made"
    assert [session._timetable.at(9).phase for session in planned.sessions] == ["maximum"] * 2


def test_a_defect_of_ours_on_one_rank_ends_the_plan_and_not_the_training(planned: Job) -> None:
    planned.instruments[0].defect = ZeroDivisionError("division by zero")
    planned.iterate(3)
    assert planned.said[-1] == "maximum clocks from here on: rank 0: an error in megatron-energy (ZeroDivisionError: division by zero)"


def test_an_iteration_that_a_rank_has_lost_has_no_figures(planned: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_number: int, _evaluation: bool) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(planned.instruments[0], "end", fails)
    planned.iterate(1)
    monkeypatch.undo()
    planned.iterate(2)
    assert planned.said[-1] == "maximum clocks from here on: rank 0: an error in megatron-energy (ZeroDivisionError: division by zero)"
    assert [s.iteration for s in Journal(planned.options.run_dir).read()] == [1, 2, 3, 4, 5, 7, 8]


def test_a_defect_of_ours_at_home_gives_every_clock_back(planned: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    def fails(*_: object) -> None:
        raise KeyError("units")

    monkeypatch.setattr(planned.conductor, "_report", fails)
    planned.iterate(4)
    assert {session._timetable.at(9).phase for session in planned.sessions} == {"maximum"}
    assert {session.requests[ITERATION_BEGIN] for session in planned.sessions} == {(ClockRequest(0),)}
    planned.conductor._background.idle(60.0)
    assert planned.said[-1].startswith("maximum clocks from here on: an error in megatron-energy (KeyError: 'units'")
    assert "in fails" in (tmp_path / "error.txt").read_text()


def test_a_network_that_fails_gives_this_ranks_clock_back(planned: Job, monkeypatch: pytest.MonkeyPatch) -> None:

    def fails(_item: object) -> None:
        raise RuntimeError("Connection reset by peer")

    monkeypatch.setattr(planned.sessions[0]._exchange, "gather", fails)
    planned.sessions[0].log(5, None)
    assert planned.sessions[0].requests == {} and planned.controllers[0].maximum == 1
    planned.sessions[0].log(6, None)  # and it is not tried again
    assert planned.controllers[0].maximum == 1


def test_evaluations_run_at_the_gpus_own_clock(planned: Job) -> None:
    for session in planned.sessions:
        assert session.evaluation_requests[ITERATION_BEGIN][0] == ClockRequest(0)
        assert session.requests[ITERATION_BEGIN][0].clock_mhz > 0, "the iteration after it asks for the plan's clock anew"


def test_the_end_gives_the_clock_back_before_anything_else(planned: Job) -> None:
    planned.sessions[0].close()
    assert planned.controllers[0].closed and planned.released == [0]


def test_the_end_goes_on_where_a_part_of_it_fails(planned: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise OSError("the GPU is lost")

    said: list[str] = []
    session = planned.sessions[1]
    monkeypatch.setattr(session, "_say", said.append)
    monkeypatch.setattr(planned.controllers[1], "close", fails)
    monkeypatch.setattr(session._hold, "_close", fails)
    session.close()
    why = "an error in megatron-energy (OSError: the GPU is lost; see error.txt in the run directory)"
    assert said == [f"rank 1: the end of its clock control: {why}", f"rank 1: its GPU may not be as it was found: {why}"]
    assert (planned.options.run_dir / "summary.json").exists()


def test_a_run_that_ends_before_its_plan_says_what_was_missing(new_job: Callable[..., Job]) -> None:
    job = new_job()
    job.iterate(4)
    for session in job.sessions:
        session.close()
    assert job.said[-1] == (
        "no plan came into force: 7 more iterations needed, a plan needs 8 before it (1 + 1 of the baseline + 6 of the sweep)"
    )


def test_a_rank_whose_exchange_has_failed_keeps_no_more_records(planned: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_item: object) -> None:
        raise OSError("Connection reset by peer")

    session = planned.sessions[0]
    monkeypatch.setattr(session._exchange, "gather", fails)
    session.log(5, None)
    for number in (6, 7):
        session.iteration(number, planned.run.programs[0], False)
    assert session._pending == []
