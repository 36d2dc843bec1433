"""Ranks that follow timetables: what they ask their controllers for, and what they hear of clocks that others set."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from megatron_energy.observe.journal import Journal
from megatron_energy.records.steps import ClockRequest
from megatron_energy.session.control import write_control
from megatron_energy.session.directive import ITERATION_BEGIN, Directive
from megatron_energy.session.options import Policy
from tests.session.small_job import OPTIONS
from tests.session.timetable_job import BASELINE, PLANNED_FROM, Job


@pytest.mark.parametrize("settled", [True, False])
def test_where_megatron_waits_for_the_gpu_the_controller_is_told(new_job: Callable[..., Job], settled: bool) -> None:
    job = new_job(settled_at_log=settled)
    job.iterate(4)
    assert [controller.caught_ups for controller in job.controllers] == [int(settled)] * 2


@pytest.mark.parametrize(("policy", "last"), [("segments", "sweep"), ("maximum", "measure")])
def test_every_step_of_the_counter_is_kept_in_the_iterations_that_are_learned_from(
    new_job: Callable[..., Job], policy: Policy, last: str
) -> None:
    job, kept = new_job(options=replace(OPTIONS, policy=policy)), []
    for _ in range(6):
        kept.append({instruments.learns for instruments in job.instruments})
        job.iterate(1)
    assert kept == [{phase in ("baseline", "sweep")} for phase in job.phases]
    assert job.phases[-1] == last


def test_under_a_plan_few_steps_of_the_counter_are_kept_until_the_baseline_is_measured_again(planned: Job) -> None:
    assert {instruments.learns for instruments in planned.instruments} == {False}
    planned.sessions[0]._timetable.change([(planned.number + 2, Directive("baseline")), (planned.number + 3, Directive("planned"))])
    learns = []
    for _ in range(3):
        planned.iterate(1)
        learns.append(planned.instruments[0].learns)
    assert learns == [True, False, False]


def test_policies_without_a_plan_ask_for_nothing(new_job: Callable[..., Job]) -> None:
    job = new_job(options=replace(OPTIONS, policy="maximum"))
    job.iterate(8)
    assert job.phases == BASELINE + ["measure"] * 6
    assert job.sessions[0].requests == {}


def test_lowers_tell_when_the_next_raise_is_due_and_dropped_ones_are_counted(planned: Job) -> None:
    lowers = [r for requests in planned.sessions[0].requests.values() for r in requests if r.raise_in_s is not None]
    assert lowers and all(r.raise_in_s >= 0 for r in lowers if r.raise_in_s is not None)
    planned.sessions[0].request(ClockRequest(990, raise_in_s=0.2))
    planned.sessions[0].request(ClockRequest(1410))
    assert planned.controllers[0].raises_in_s == [0.2, math.inf]
    planned.controllers[0].counts = replace(planned.controllers[0].counts, dropped_before_raise=2)
    planned.iterate(3)
    summaries = Journal(planned.options.run_dir).read()
    assert [(s.iteration, s.gpus[0].dropped_lowers) for s in summaries if s.gpus[0].dropped_lowers] == [(PLANNED_FROM + 1, 2)]


def test_gpus_that_do_not_obey_end_the_plan(planned: Job) -> None:
    for _ in range(3):
        planned.controllers[1].counts = replace(planned.controllers[1].counts, disobeyed=planned.controllers[1].counts.disobeyed + 1)
        planned.iterate(1)
    assert "up to 1 GPUs ran at other clocks than requested, without a reason" in planned.said[-1]
    assert planned.sessions[0]._timetable.at(9).phase == "maximum"


def test_a_power_limit_that_somebody_changes_ends_the_plan(planned: Job) -> None:
    planned.sessions[0]._other_writer = lambda: "power limit 400 W before, now 300 W"
    planned.iterate(3)
    assert "another program sets something of its GPUs (rank 0: power limit 400 W before, now 300 W)" in planned.said[-1]
    assert planned.sessions[1]._timetable.at(9).phase == "maximum"


def test_another_programs_lock_ends_the_plan_with_its_evidence(planned: Job) -> None:
    planned.instruments[0].foreign = "clock 1095 MHz where 1200 MHz were asked for"
    planned.iterate(3)
    assert "another program sets something of its GPUs (rank 0: clock 1095 MHz where 1200 MHz were asked for)" in planned.said[-1]
    assert planned.said[-1].startswith("maximum clocks for the next 200 iterations: ")


def test_the_live_switch_is_seen_at_a_log_interval(planned: Job, tmp_path: Path) -> None:
    write_control(tmp_path, "drop")
    planned.iterate(3)
    assert {session._timetable.at(9).phase for session in planned.sessions} == {"maximum"}
    assert planned.sessions[0].requests == {ITERATION_BEGIN: (ClockRequest(0),)}
    write_control(tmp_path, "resume")
    planned.iterate(8)
    assert planned.phases[-8:] == ["maximum"] * 4 + ["planned"] * 4
