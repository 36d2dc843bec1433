"""Records that cannot be written end the records, not the training."""

from pathlib import Path

from megatron_energy.records.iteration import RankIteration
from megatron_energy.records.summary import GpuSummary, IterationSummary
from megatron_energy.session.coordinator import Findings, IterationData
from megatron_energy.session.options import EnergyOptions
from megatron_energy.session.reporting import Reporter
from tests.session.facts import job


def summary(iteration: int) -> IterationSummary:
    gpu = GpuSummary(0, "node0", 0, "GPU-0", 0, 0, 0, energy_j=100.0, power_w=50.0, clock_mhz=1410.0, waiting_s=0.0)
    return IterationSummary(iteration, "measure", 2.0, [gpu], emulated=True)


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
