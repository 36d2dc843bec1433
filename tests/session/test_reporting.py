"""What the home rank writes: its own records only, without keeping the run in memory; what cannot be written ends no training."""

import gc
from pathlib import Path
from types import SimpleNamespace

import pytest

from megatron_energy.errors import UserError
from megatron_energy.observe.journal import Journal
from megatron_energy.records.iteration import RankIteration
from megatron_energy.records.summary import GpuSummary, IterationSummary, Phase
from megatron_energy.session.findings import Findings, IterationData
from megatron_energy.session.options import EnergyOptions
from megatron_energy.session.reporting import Reporter
from tests.session.facts import job


def summary(iteration: int, phase: Phase = "measure") -> IterationSummary:
    gpu = GpuSummary(0, "node0", 0, "GPU-0", 0, 0, 0, energy_j=100.0, power_w=50.0, clock_mhz=1410.0, waiting_s=0.0)
    return IterationSummary(iteration, phase, 2.0, [gpu], emulated=True)


def data(iteration: int) -> IterationData:
    return IterationData([RankIteration(0, iteration, 2.0 * iteration, 2.0 * iteration + 2.0, 100.0)], [])


def test_a_directory_that_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    said: list[str] = []
    reporter = Reporter(EnergyOptions(policy="measure", directory=str(tmp_path / "file")), job(), Findings(), "title", said.append)
    for iteration in range(1, 4):
        reporter.add(summary(iteration), data(iteration))
    report = reporter.finish()
    assert len(said) == 1 and said[0].startswith(f"no more records in {tmp_path / 'file'}: ")
    assert report is not None and report.total.baseline_j == 100.0
    assert (tmp_path / "file").read_text() == "in the way"


def test_someone_elses_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "iterations.jsonl").write_text('{"schema": "another"}\n')
    said: list[str] = []
    reporter = Reporter(EnergyOptions(policy="measure", directory=str(tmp_path)), job(), Findings(), "title", said.append)
    reporter.add(summary(1), data(1))
    reporter.finish()
    assert len(said) == 1 and "is not a record of iterations" in said[0]
    assert (tmp_path / "iterations.jsonl").read_text() == '{"schema": "another"}\n'


def reporter_in(directory: Path, said: list[str], policy: str = "segments") -> Reporter:
    return Reporter(EnergyOptions(policy=policy, directory=str(directory)), job(), Findings(), "title", said.append)  # type: ignore[arg-type]


def test_nothing_of_an_earlier_run_is_shown_as_this_ones(tmp_path: Path) -> None:
    said: list[str] = []
    first = reporter_in(tmp_path, said)
    for iteration in (1, 2):
        first.add(summary(iteration), data(iteration))
    first.finish()
    for name in ("plan.json", "timeline.png"):
        (tmp_path / name).write_text("of the first run")
    assert not said
    second = reporter_in(tmp_path, said)
    assert said == [f"records of an earlier run in {tmp_path} are now in {tmp_path / 'run-1'}"]
    for iteration in (2, 3, 4):
        second.add(summary(iteration), data(iteration))
    report = second.finish()
    assert report is not None and (report.facts.plan_path, report.facts.timeline_path) == (None, None)
    assert report.baseline_iterations == 2 and report.windows.left_out == 1
    assert [s.iteration for s in Journal(tmp_path).read()] == [2, 3, 4]
    assert [s.iteration for s in Journal(tmp_path / "run-1").read()] == [1, 2]
    assert (tmp_path / "run-1" / "timeline.png").read_text() == "of the first run"


def test_a_second_run_in_the_same_directory_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    first = reporter_in(tmp_path, [])
    first.add(summary(1), data(1))
    with pytest.raises(UserError, match="is in use by another run"):
        reporter_in(tmp_path, [])
    assert not (tmp_path / "run-1").exists()
    first.finish()
    reporter_in(tmp_path, []).finish()


@pytest.mark.parametrize("phase", ["measure", "planned"])
def test_a_long_run_takes_no_more_memory(phase: Phase, tmp_path: Path) -> None:
    def kept() -> int:
        gc.collect()
        return sum(type(o) in (IterationSummary, RankIteration, GpuSummary) for o in gc.get_objects())

    reporter, before = reporter_in(tmp_path, []), kept()
    for iteration in range(1, 1001):
        reporter.add(summary(iteration, phase), data(iteration))
    assert kept() - before <= 12  # no TensorBoard writer has ever come
    report = reporter.finish()
    assert report is not None and report.baseline_iterations + report.planned_iterations == 999


def test_a_model_that_is_too_small_to_measure_is_told_with_what_to_do(tmp_path: Path) -> None:
    options = EnergyOptions(policy="segments", device="emulated", directory=str(tmp_path))
    reporter = Reporter(options, job(), Findings(), "title", print)
    assert "--energy-emulated-model" in reporter.plan_facts().too_short
    reporter.finish()


def test_a_tensorboard_that_fails_at_the_end_costs_neither_report_nor_lock(tmp_path: Path) -> None:
    said: list[str] = []
    reporter = reporter_in(tmp_path, said)
    reporter.add(summary(1), data(1))
    reporter._log = SimpleNamespace(finish=_refuse)
    report = reporter.finish()
    assert report is not None and (tmp_path / "summary.json").exists()
    assert said[-1].startswith("not all is in TensorBoard: an error in megatron-energy (RuntimeError: can't start new thread; ")
    reporter_in(tmp_path, []).finish()  # RUN_DIR is free


def _refuse(*_: object) -> None:
    raise RuntimeError("can't start new thread")
