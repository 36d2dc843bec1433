"""Maximum clocks between two log intervals: ranks fall back alone and at once, and the home rank decides at the next one."""

import itertools
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from megatron_energy.observe.journal import Journal
from megatron_energy.records.steps import ClockRequest
from megatron_energy.session.control import Control, write_control
from megatron_energy.session.directive import ITERATION_BEGIN, Directive, TransitionPoint, constant_clock
from megatron_energy.session.fallback import OwnGuard
from megatron_energy.session.guard import Guard
from megatron_energy.session.node_switch import NodeSwitch
from tests.clockd.host import wait_until
from tests.session import timetable_job
from tests.session.timetable_job import Job

POINT: TransitionPoint = ("forward", 0, 0, "begin")
BASELINE = Directive("baseline")
PLANNED = Directive("planned", plan_version=1)


@pytest.fixture
def job(planned: Job, monkeypatch: pytest.MonkeyPatch) -> Job:
    """In its second iteration under a given plan, a hundred before the next log interval."""
    planned.iterate(1)
    assert planned.phases[-2:] == ["planned"] * 2
    monkeypatch.setattr(timetable_job, "LOG_INTERVAL", 100)
    return planned


def test_a_drop_reaches_every_rank_in_the_operation_that_is_running(job: Job) -> None:
    exchanges = job.meeting.exchanges
    job.switch.dropped = True
    for session, controller in zip(job.sessions, job.controllers, strict=True):
        session.mark(POINT)
        session.mark(POINT)
        assert controller.maximum == 1
        session.request(ClockRequest(990))
        assert 990 not in controller.asked and session.requests == {} and session.evaluation_requests == {}
    job.iterate(5)
    assert job.meeting.exchanges == exchanges, "nothing is exchanged for it"
    job.log()
    assert next(line for line in job.said if "dropped" in line).startswith("dropped to maximum clocks by ")
    assert [s.phase for s in Journal(job.options.run_dir).read()][6:] == ["maximum"] * 5
    assert {session._timetable.at(20).phase for session in job.sessions} == {"maximum"}
    job.switch.dropped = False
    job.iterate(2)
    job.log()
    assert job.said[-1] == "resumed"
    assert all(session.requests[ITERATION_BEGIN][0].clock_mhz > 0 for session in job.sessions), "the plan's first clock is asked for"


def test_a_drop_that_only_another_node_can_see_is_told_once(job: Job) -> None:
    """Where RUN_DIR is not shared, the home rank's own file says nothing."""
    said = len(job.said)
    job.switch.dropped = True
    for _ in range(3):
        for session in job.sessions:
            session.mark(POINT)
        job.iterate(2)
        job.log()
        assert job.sessions[0]._timetable.at(job.number + 1).phase == "maximum"
    job.switch.dropped = False
    job.log()
    assert [line.split()[0] for line in job.said[said:]] == ["dropped", "resumed"]


def test_a_drop_that_is_over_before_the_log_interval_lasts_until_it(job: Job) -> None:
    usual = job.sessions[0]._timetable.at(7).requests
    job.switch.dropped = True
    for session in job.sessions:
        session.mark(POINT)
    job.switch.dropped = False
    job.iterate(2)
    assert [session.requests for session in job.sessions] == [{}, {}]
    job.log()
    begin, *_ = job.sessions[0].requests[ITERATION_BEGIN]
    assert begin.clock_mhz > 0 and usual.items() <= {**job.sessions[0].requests, ITERATION_BEGIN: usual.get(ITERATION_BEGIN)}.items()
    job.iterate(1)
    job.log()
    assert Journal(job.options.run_dir).read()[-1].phase == "planned"


def test_long_iterations_take_ranks_to_maximum_clocks_before_the_log_interval(job: Job) -> None:
    job.instruments[0].stretch = job.instruments[1].stretch = 1.03
    job.iterate(20)
    assert [controller.maximum for controller in job.controllers] == [1, 1]
    assert job.sessions[0].requests == {}
    job.log()
    (line,) = [line for line in job.said if "without waiting" in line]
    assert line == "maximum clocks until here, without waiting for the log interval: iterations up to 13 looked too long (rank 0)"
    assert [s.phase for s in Journal(job.options.run_dir).read()][4:] == ["planned"] * 10 + ["maximum"] * 12
    assert job.sessions[0].requests[ITERATION_BEGIN][0].clock_mhz > 0, "the guard of the whole job sees nothing wrong: the plan goes on"


def guarded(times_s: Callable[[int], float], count: int = 50) -> int | None:
    """Iterations under the plan until the alarm; the baseline takes 2 s."""
    guard = OwnGuard(0.0)
    for _ in range(4):
        assert not guard.observe(BASELINE, 2.0)
    guard.observe(PLANNED, 99.0)  # contains the change of clocks
    return next((n for n in range(1, count) if guard.observe(PLANNED, times_s(n))), None)


def test_a_rank_tests_its_own_iterations_as_the_guard_does() -> None:
    assert guarded(lambda n: 2.0) is None
    assert guarded(lambda n: 2.06) == 5


def test_a_baseline_measured_again_leaves_what_is_known_of_the_plan() -> None:
    random = Random(5)
    own, guard = OwnGuard(0.0), Guard(0.0)
    for _ in range(3):
        window = [random.gauss(2.0, 0.04) for _ in range(4)]
        assert [own.observe(BASELINE, time_s) for time_s in (9.0, *window)] == [False] * 5
        guard.rebase(window)
        assert not own.observe(PLANNED, 9.0)
        under = [random.gauss(2.0, 0.04) for _ in range(200)]
        assert [own.observe(PLANNED, time_s) for time_s in under] == [guard.observe(time_s) for time_s in under]


def test_a_rank_without_a_baseline_judges_nothing() -> None:
    guard = OwnGuard(0.0)
    assert not any(guard.observe(PLANNED, 2.0 + n) for n in range(50))


def test_iterations_right_after_something_else_are_left_out() -> None:
    guard = OwnGuard(0.0)
    for _ in range(4):
        guard.observe(BASELINE, 2.0)
    for _ in range(50):
        guard.interrupt()
        assert not guard.observe(PLANNED, 9.0)


def test_maximum_clocks_between_two_tries_are_a_new_baseline() -> None:
    guard = OwnGuard(0.0)
    maximum = constant_clock("maximum", 0)
    for directive, time_s in itertools.chain([(BASELINE, 2.0)] * 4, [(PLANNED, 2.0)] * 4, [(maximum, 2.06)] * 70):
        assert not guard.observe(directive, time_s)
    assert not any(guard.observe(PLANNED, 2.06) for _ in range(50))


def test_one_process_of_a_node_looks_at_the_file_and_all_of_them_know(tmp_path: Path) -> None:
    (tmp_path / "iterations.jsonl").touch()
    first, other = NodeSwitch(tmp_path / "switch"), NodeSwitch(tmp_path / "switch")
    assert not other.dropped
    first.watch(Control(tmp_path, print).dropped, look_s=0.005)
    try:
        write_control(tmp_path, "drop")
        wait_until(lambda: other.dropped, "seen")
        write_control(tmp_path, "resume")
        wait_until(lambda: not other.dropped, "seen again")
    finally:
        first.close()
