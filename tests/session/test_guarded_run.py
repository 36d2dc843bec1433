"""The guard and the live switch in simulated runs with real plans."""

import dataclasses

import pytest

from megatron_energy.observe.journal import FILE_NAME
from megatron_energy.session.control import write_control
from megatron_energy.session.directive import ITERATION_BEGIN
from megatron_energy.session.findings import IterationData
from tests.session.simulated import SimulatedRun
from tests.session.test_trust import UNTIL_PLAN, small_run

LATE = 6
"""Iterations until an alarm: five that are 3% longer, and the first, of which the faster stage has done a part before."""


@pytest.fixture
def planned_run(tmp_path) -> SimulatedRun:
    """Two iterations under its plan."""
    (tmp_path / FILE_NAME).touch()
    run = small_run(directory=str(tmp_path))
    run.iterate(UNTIL_PLAN + 2)
    assert run.coordinator.directives[0].phase == "planned"
    return run


def stretched(run: SimulatedRun, iterations: int, phases: tuple[str, ...]) -> list[str]:
    """Iterations whose computations take 3% longer in these phases; the phases that ran."""
    ran = []
    for _ in range(iterations):
        phase = run.coordinator.directives[0].phase
        for rank in range(2):
            run.settler.set_stretch(rank, 1.03 if phase in phases else 1.0)
        run.iterate(1)
        ran.append(phase)
    return ran


def test_a_plan_that_turns_out_slow_gives_way_to_a_safer_one(planned_run):
    run = planned_run
    first = run.coordinator.findings.planned
    assert stretched(run, 18, ("planned",)) == [*["planned"] * LATE, *["baseline"] * 4, *["planned"] * (14 - LATE)]
    safer = run.coordinator.findings.planned
    assert safer.version == 2
    assert [d.plan_version for d in run.coordinator.directives] == [2, 2]
    assert run.said[-1].startswith("a safer plan from here on")
    assert safer.plan.expected.saved_percent < first.plan.expected.saved_percent
    assert safer.plan.expected.iteration_s <= first.plan.expected.deadline_s * 1.001
    assert safer.switches_max <= first.switches_max
    assert min(safer.plan.clocks_mhz) >= (1410 + min(first.plan.clocks_mhz)) / 2


def test_a_job_that_becomes_slower_keeps_its_plan(planned_run):
    ran = stretched(planned_run, 20, ("planned", "baseline"))
    assert ran == [*["planned"] * LATE, *["baseline"] * 4, *["planned"] * (16 - LATE)]
    assert "the plan keeps its time" in planned_run.said[-1]
    assert planned_run.coordinator.findings.planned.version == 1


def lowest_mhz(data: IterationData) -> list[float]:
    """By rank, the lowest clock that ran; at maximum clocks that is where the power cap held it."""
    return [min(span.clock_mhz for span in record.spans) for record in data.records]


def test_the_live_switch_takes_effect_on_all_ranks_at_one_iteration(planned_run, tmp_path):
    run = planned_run
    under_plan, as_found = run.iterate(1)[0].energy_j, lowest_mhz(run.coordinator.findings.baseline[-1])
    write_control(tmp_path, "drop")
    assert all(
        mhz < found for mhz, found in zip(lowest_mhz(run.iterate(1)[0]), as_found, strict=True)
    )  # asked for in this iteration, decided at its end
    assert [d.requests[ITERATION_BEGIN][0].clock_mhz for d in run.coordinator.directives] == [0, 0]
    run.iterate(1)  # the change of clocks
    assert [lowest_mhz(data) for data in run.iterate(20)] == [as_found] * 20
    assert {d.phase for d in run.coordinator.directives} == {"maximum"}
    write_control(tmp_path, "resume")
    run.iterate(1)
    assert [d.phase for d in run.coordinator.directives] == ["planned"] * 2
    run.iterate(1)
    assert run.iterate(1)[0].energy_j == pytest.approx(under_plan, rel=1e-3)
    assert [line.partition(":")[0] for line in run.said[1:]] == [f"dropped to maximum clocks by {tmp_path}/control; to go on", "resumed"]


def test_a_job_that_starts_while_dropped_stays_at_maximum_clocks_until_resumed(tmp_path):
    (tmp_path / FILE_NAME).touch()
    write_control(tmp_path, "drop")
    run = small_run(directory=str(tmp_path))
    run.iterate(30)
    assert run.coordinator.findings.planned is None
    write_control(tmp_path, "resume")
    run.iterate(UNTIL_PLAN + 1)
    assert run.coordinator.directives[0].phase == "planned"


def test_a_dropped_job_whose_plan_ended_says_so_when_resumed(planned_run, tmp_path):
    write_control(tmp_path, "drop")
    planned_run.iterate(1)
    planned_run.coordinator.drop("something else went wrong")
    planned_run.iterate(1)
    write_control(tmp_path, "resume")
    planned_run.iterate(2)
    assert planned_run.said[-1] == "resumed, but at maximum clocks: something else went wrong"
    assert planned_run.coordinator.directives[0].phase == "maximum"


def test_an_evaluation_while_dropped_brings_no_clock_of_the_plan_back(planned_run, tmp_path):
    write_control(tmp_path, "drop")
    planned_run.iterate(2)
    planned_run.coordinator.interrupted()
    planned_run.iterate(1)
    assert planned_run.coordinator.directives[0] == dataclasses.replace(planned_run.coordinator.directives[0], phase="maximum", requests={})
