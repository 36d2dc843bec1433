"""What the home rank makes of iterations that cannot be trusted."""

from dataclasses import replace
from pathlib import Path

import pytest

from megatron_energy.emulation.catalog import load
from megatron_energy.pipeline.programs import program
from megatron_energy.records.steps import Program
from megatron_energy.session.directive import Directive, constant_clock, evaluation_requests
from megatron_energy.session.emulated import on_emulated_nodes
from megatron_energy.session.emulated_session import Home, Recorded
from tests.session.small_job import FACTS, OPTIONS

GPU = load("a100-sxm4-80gb")


def home(directory: Path, said: list[str], policy: str = "segments") -> Home:
    options = replace(OPTIONS, directory=str(directory), policy=policy)
    return Home(options, on_emulated_nodes(FACTS.ranks, 8), GPU.sm_clocks_mhz, said.append)


def programs() -> list[Program]:
    return [program(FACTS.schedule("overlap"), stage, grad_sync=True, optimizer=True) for stage in range(2)]


def whole() -> list[Recorded]:
    return [Recorded(p) for p in programs()]


def test_programs_that_wait_for_each_other_end_the_figures_not_the_training(tmp_path: Path) -> None:
    said: list[str] = []
    job = home(tmp_path, said)
    assert job.settle(whole(), 1, False) is not None
    reached = list(job.advances)
    first, second = programs()
    assert job.settle([Recorded(first), Recorded(second[: len(second) // 2])], 2, False) is None
    assert len(said) == 1 and said[0].startswith("maximum clocks from here on: deadlock: ") and "\n" not in said[0]
    assert job.advances == reached and job.coordinator.directives == [constant_clock("maximum", 0)] * 2
    assert job.settle(whole(), 3, False) is None and job.settle(whole(), 4, True) is None
    assert job.advances == reached and len(said) == 1


def test_time_stands_still_in_a_broken_iteration_and_goes_on_after_it(tmp_path: Path) -> None:
    said: list[str] = []
    job = home(tmp_path, said)
    job.settle(whole(), 1, False)
    reached = list(job.advances)
    first, second = whole()
    assert job.settle([first, replace(second, broken="no idea")], 2, False) is None
    assert job.advances == reached
    assert said == ["maximum clocks from here on: rank 1: no idea (such iterations have no figures)"]
    data = job.settle(whole(), 3, False)
    assert data is not None and data.records[0].start_s == reached[0].now_s
    assert all(after.now_s > before.now_s for before, after in zip(reached, job.advances, strict=True))


@pytest.mark.parametrize(
    ("policy", "line"), [("segments", "maximum clocks from here on: "), ("measure", "from here on, iterations are not ")]
)
def test_other_sizes_are_settled_and_not_compared(policy: str, line: str, tmp_path: Path) -> None:
    said: list[str] = []
    job = home(tmp_path, said, policy)
    for iteration in (1, 2, 3):
        job.settle(whole(), iteration, False)
    stale = [replace(r, stale="microbatches changed") for r in whole()]
    assert job.settle(stale, 4, False) is not None
    assert len(said) == 1 and said[0].startswith(line) and said[0].endswith(": microbatches changed")
    assert not job.coordinator.findings.comparable
    assert job.settle(stale, 5, False) is not None and len(said) == 1


def test_an_evaluation_asks_for_the_gpus_own_clock_where_clocks_were_asked_for(tmp_path: Path) -> None:
    assert evaluation_requests(Directive("baseline")) == evaluation_requests(Directive("maximum")) == {}
    ((point, requests),) = evaluation_requests(constant_clock("sweep", 900)).items()
    assert point == ("iteration", -1, -1, "begin") and [(r.clock_mhz, r.delay_s) for r in requests] == [(0, 0.0)]
    raise_later = constant_clock("planned", 900).requests[point][0]
    planned = Directive("planned", {("optimizer", -1, -1, "end"): (replace(raise_later, delay_s=0.4),)})
    assert [(r.clock_mhz, r.delay_s) for r in evaluation_requests(planned)[point]] == [(0, 0.0), (0, pytest.approx(0.401))]
