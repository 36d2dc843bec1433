"""What a plan predicts from a learned profile, against what settling counts: two programs that share no code."""

from functools import cache

import pytest

from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.session.options import EnergyOptions
from tests.session.facts import job
from tests.session.simulated import SimulatedRun

BASELINE, CLOCKS = 2, 6
UNTIL_PLAN = 1 + BASELINE + 2 * CLOCKS


@cache
def planned_run(latency: str, p2p: str = "overlap-wait") -> SimulatedRun:
    """A run under its plan; shared, as making one takes seconds: a test that changes it puts it back."""
    options = EnergyOptions(
        policy="segments",
        device="emulated",
        emulated_model="gpt3-13b",
        emulated_micro_batch=4,
        emulated_latency=latency,
        baseline_iterations=BASELINE,
        sweep_clocks=CLOCKS,
    )
    facts = job(tensor=2, data=2, pipeline=4, chunks=2, microbatches=8, core_version="0.19.2")
    run = SimulatedRun(options, facts, Schedule(4, 8, 2, p2p=p2p))
    run.iterate(UNTIL_PLAN + 1)  # and the iteration that changes over
    assert run.coordinator.findings.planned is not None, run.said
    return run


def errors_percent(run: SimulatedRun) -> tuple[float, float]:
    """Counted against expected: (time, energy) in percent."""
    planned, (data,) = run.coordinator.findings.planned, run.iterate(1)
    return 100 * (data.time_s / planned.expected_time_s - 1), 100 * (data.energy_j / planned.expected_energy_j - 1)


@pytest.mark.parametrize("p2p", ["overlap", "overlap-wait", "batched"])
def test_prediction_is_what_settling_counts(p2p):
    run = planned_run("zero", p2p)
    assert run.coordinator.findings.planned.plan.schedule.p2p == p2p
    time_percent, energy_percent = errors_percent(run)
    assert abs(time_percent) < 0.05
    assert abs(energy_percent) < 0.5


def test_energies_that_rise_after_profiling_are_noticed():
    run = planned_run("zero")
    run.scale_energy(1.05)
    raised = errors_percent(run)[1]
    run.scale_energy(1.0)
    assert raised == pytest.approx(5.0, abs=0.5)
    assert abs(errors_percent(run)[1]) < 0.5


def test_latency_costs_energy_and_no_time():
    run = planned_run("catalog")
    time_percent, energy_percent = errors_percent(run)
    assert time_percent < 0.01
    assert 0.0 < energy_percent < 1.5
    (data,) = run.iterate(1)
    assert sum(r.late_raises for r in data.records) == 0


def test_planned_iterations_keep_time_and_reach_the_bound():
    run = planned_run("catalog")
    findings = run.coordinator.findings
    iterations = run.iterate(5)
    time_s = sum(i.time_s for i in iterations) / 5
    energy_j = sum(i.energy_j for i in iterations) / 5
    assert time_s <= findings.baseline_time_s * 1.001
    saved_percent = 100 * (1 - energy_j / findings.baseline_energy_j)
    assert saved_percent >= 0.9 * findings.planned.bound_saved_percent
    assert findings.planned.switches_max <= 8
