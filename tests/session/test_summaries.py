"""From the records of an iteration to its summary, and to what emulated NVML shows after it."""

from types import SimpleNamespace
from typing import cast

import pytest

from megatron_energy.emulation.settle.gpu import Gpu
from megatron_energy.gpus.device import EventReason
from megatron_energy.records.iteration import RankIteration, Span
from megatron_energy.records.summary import IterationSummary, Phase
from megatron_energy.session.emulated import Advance
from megatron_energy.session.findings import Findings, IterationData
from megatron_energy.session.planned import PlannedRun
from megatron_energy.session.summaries import Standing, summarise
from tests.session.facts import job

PLANNED = cast(PlannedRun, SimpleNamespace(version=1, expected_time_s=4.0, expected_energy_j=900.0))
UNDER_PLAN = Standing(planned=PLANNED)
BASELINE = IterationData([RankIteration(0, 1, 0.0, 4.0, 1000.0)], [])


def summary(phase: Phase, findings: Findings, standing: Standing = UNDER_PLAN) -> IterationSummary:
    spans = [Span("forward", 0, 0, 10.0, 13.0, 1290, throttled=True), Span("wait", -1, -1, 13.0, 14.0, 1410)]
    record = RankIteration(0, 2, 10.0, 14.0, 900.0, spans, [(10.0, 1290), (13.0, 1410)])
    return summarise(2, phase, [record], [800.0], ["GPU-0"], job(), findings, standing)


def test_figures_of_a_gpu_are_the_counters_and_the_clock_that_ran() -> None:
    (gpu,) = summary("planned", Findings()).gpus
    assert (gpu.energy_j, gpu.power_w, gpu.waiting_s, gpu.throttled_s) == (800.0, 200.0, 1.0, 3.0)
    assert gpu.clock_mhz == (3 * 1290 + 1410) / 4


@pytest.mark.parametrize("phase", ["baseline", "sweep", "measure", "maximum", "evaluation"])
def test_what_the_plan_expects_stands_beside_planned_iterations_alone(phase: Phase) -> None:
    findings = Findings(baseline=[BASELINE])
    assert (summary(phase, findings).expected_time_s, summary(phase, findings).expected_energy_j) == (None, None)
    planned = summary("planned", findings)
    assert (planned.expected_time_s, planned.expected_energy_j) == (4.0, 900.0)
    assert (planned.saved_percent, planned.slowdown_percent) == (pytest.approx(20.0), 0.0)
    assert (summary(phase, findings).plan_version, planned.plan_version) == (0, 1)


def test_an_iteration_is_judged_by_what_it_was_not_by_what_came_later() -> None:
    later = cast(PlannedRun, SimpleNamespace(version=2, expected_time_s=5.0, expected_energy_j=950.0))
    findings = Findings(baseline=[BASELINE], planned=later)
    ran = summary("planned", findings)
    assert (ran.plan_version, ran.expected_time_s, ran.expected_energy_j) == (1, 4.0, 900.0)
    findings.comparable = False
    assert summary("planned", findings).saved_percent == pytest.approx(20.0)
    other = summary("planned", Findings(baseline=[BASELINE]), Standing(comparable=False, planned=PLANNED))
    assert (other.saved_percent, other.slowdown_percent, other.expected_time_s) == (None, None, 4.0)


@pytest.mark.parametrize(
    ("clock_mhz", "capped", "reasons"),
    [
        (1410, False, EventReason.NONE),
        (1410, True, EventReason.POWER_CAP),
        (1200, False, EventReason.LOCKED_CLOCKS),
        (1395, True, EventReason.POWER_CAP | EventReason.LOCKED_CLOCKS),
    ],
)
def test_nvml_tells_why_a_clock_is_low(clock_mhz: int, capped: bool, reasons: EventReason) -> None:
    gpu = Gpu(0, 0, clock_mhz, 400.0, 4.0, 2e6, 1_900_000, ran_mhz=1185.5, power_w=310.0, capped=capped)
    assert Advance.of(gpu, 1410) == Advance(4.0, 1_900_000, 1185.5, 310.0, reasons)
    assert Advance.of(Gpu(0, 0, clock_mhz, 400.0), 1410).clock_mhz == clock_mhz  # before its first iteration
