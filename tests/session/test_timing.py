"""One way of timing iterations: they add up to the run, and an evaluation in between changes no comparison."""

import pytest

from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.records.iteration import RankIteration, job_time_s
from megatron_energy.session.findings import IterationData
from megatron_energy.session.options import EnergyOptions
from tests.session.facts import job
from tests.session.simulated import SimulatedRun

SCHEDULE = Schedule(stages=4, microbatches=8, chunks=2, p2p="overlap-wait")
FACTS = job(pipeline=4, chunks=2, microbatches=8, core_version="0.19.2")
BASELINE = 3


def measured(policy="measure") -> SimulatedRun:
    options = EnergyOptions(
        policy=policy, device="emulated", emulated_model="gpt3-13b", emulated_micro_batch=4, baseline_iterations=BASELINE, sweep_clocks=2
    )
    return SimulatedRun(options, FACTS, SCHEDULE)


def records(*begins_and_ends: tuple[float, float]) -> list[RankIteration]:
    return [RankIteration(rank, 1, start_s, end_s, 0.0) for rank, (start_s, end_s) in enumerate(begins_and_ends)]


def test_an_iteration_lasts_from_the_first_begin_to_the_next_one():
    # two stages: an evaluation of 3 s per stage, the second 1 s behind the first; then an iteration, and another
    assert job_time_s(records((0, 3), (0, 4))) == 3
    assert job_time_s(records((3, 13), (4, 13))) == 10
    assert job_time_s(records((13, 23), (13, 23))) == 10


def test_iterations_and_evaluations_add_up_to_the_run():
    run, lasted_s = measured(), 0.0
    for evaluated in (False, True, False, True, True, False):
        lasted_s += (run.evaluate() if evaluated else run.iterate(1)[0]).time_s
    assert lasted_s == pytest.approx(min(gpu.time_s for gpu in run.settler.gpus), rel=1e-12)


def test_a_baseline_with_an_evaluation_in_it_is_the_one_without():
    plain, evaluated = measured(), measured()
    plain.iterate(1 + BASELINE)
    evaluated.iterate(2)
    evaluated.evaluate()
    (after,) = evaluated.iterate(1)
    evaluated.iterate(1)
    expected, found = plain.coordinator.findings, evaluated.coordinator.findings
    assert len(found.baseline) == BASELINE - 1
    assert found.baseline_time_s == pytest.approx(expected.baseline_time_s, rel=1e-9)
    assert found.baseline_energy_j == pytest.approx(expected.baseline_energy_j, rel=1e-9)
    assert after.time_s > 1.005 * found.baseline_time_s  # it would have counted


def test_a_baseline_of_iterations_after_evaluations_is_none():
    run = measured("segments")
    for _ in range(1 + BASELINE):
        run.evaluate()
        run.iterate(1)
    assert run.coordinator.findings.baseline_time_s is None
    assert run.coordinator.directives[0].phase == "maximum"
    assert run.said == [
        "maximum clocks from here on: every iteration of the baseline followed an evaluation, and such are not like others: "
        "evaluate less often"
    ]


def test_evaluations_end_no_plan():
    run = measured("segments")
    run.iterate(1 + BASELINE + 4)
    assert run.coordinator.directives[0].phase == "planned"
    for _ in range(4):
        run.evaluate()
        late = run.iterate(1)[0]
        assert late.time_s > 1.005 * run.coordinator.findings.baseline_time_s
    assert run.coordinator.directives[0].phase == "planned"
    undisturbed = run.iterate(1)[0]
    assert undisturbed.time_s <= 1.001 * run.coordinator.findings.baseline_time_s


def test_the_mean_of_the_baseline_is_taken():
    data = [IterationData([RankIteration(0, 1, 0.0, time_s, energy_j)], []) for time_s, energy_j in ((1.0, 10.0), (2.0, 20.0), (6.0, 30.0))]
    run = measured()
    run.coordinator.findings.baseline = data
    assert (run.coordinator.findings.baseline_time_s, run.coordinator.findings.baseline_energy_j) == (3.0, 20.0)
    data.append(IterationData([RankIteration(0, 1, 0.0, 3.0, float("nan"))], []))  # a counter that failed once
    assert (run.coordinator.findings.baseline_time_s, run.coordinator.findings.baseline_energy_j) == (3.0, 20.0)
