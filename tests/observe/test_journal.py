"""iterations.jsonl survives what runs do to it: crashes, restarts, other versions."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from megatron_energy.errors import UserError
from megatron_energy.observe.journal import FILE_NAME, Journal
from megatron_energy.records.summary import GpuSummary, IterationSummary
from tests.observe.sample_records import run_summaries


def write(run_dir: Path, summaries: list[IterationSummary]) -> Path:
    with Journal(run_dir) as journal:
        for summary in summaries:
            journal.append(summary)
    return run_dir / FILE_NAME


def test_what_is_written_is_read(tmp_path: Path) -> None:
    summaries = run_summaries(2, 2)
    write(tmp_path / "run", summaries)
    assert Journal(tmp_path / "run").read() == summaries


def test_the_first_line_names_the_schema_and_gpus_are_listed_once(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in write(tmp_path, run_summaries(2, 1)).read_text().splitlines()]
    assert lines[0] == {"schema": "megatron-energy/iterations", "version": 1}
    assert [sorted(line)[:1] for line in lines[1:]] == [["gpus"]] + 3 * [["clock_mhz"]]
    assert len(lines[1]["gpus"]) == 16
    assert lines[2]["iteration"] == 1
    assert len(lines[2]["energy_j"]) == 16


def test_gpus_that_change_are_listed_again(tmp_path: Path) -> None:
    first, second = run_summaries(1, 1)
    second.gpus = [replace(g, node="spare") for g in second.gpus[:8]]
    write(tmp_path, [first, second])
    assert Journal(tmp_path).read() == [first, second]


def test_numpy_values_and_missing_measurements(tmp_path: Path) -> None:
    gpu = GpuSummary(np.int64(0), "n", 0, "GPU-0", 0, 0, 0, np.float32(1.5), math.nan, 1410.0, 0.0)
    write(tmp_path, [IterationSummary(1, "baseline", np.float64(2.0), [gpu])])
    (read,) = Journal(tmp_path).read()
    assert (read.gpus[0].energy_j, read.time_s, read.saved_percent) == (1.5, 2.0, None)
    assert math.isnan(read.gpus[0].power_w)


def test_a_torn_last_line_is_left_out_and_then_written_over(tmp_path: Path) -> None:
    summaries = run_summaries(3, 0)
    path = write(tmp_path, summaries[:2])
    path.write_bytes(path.read_bytes()[:-20])
    assert Journal(tmp_path).read() == summaries[:1]
    write(tmp_path, summaries[2:])
    assert Journal(tmp_path).read() == [summaries[0], summaries[2]]


@pytest.mark.parametrize("content", ["", '{"schema": "megatron-energy/iter'])
def test_a_file_that_did_not_get_its_header_is_begun_again(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE_NAME).write_text(content)
    assert Journal(tmp_path).read() == []
    summaries = run_summaries(1, 0)
    write(tmp_path, summaries)
    assert Journal(tmp_path).read() == summaries


@pytest.mark.parametrize(
    ("first_line", "message"),
    [
        ('{"schema": "megatron-energy/iterations", "version": 9}\n', "schema version 9"),
        ('{"loss": 3.2}\n', "not a record of iterations"),
        ("epoch 1 done\n", "not a record of iterations"),
    ],
)
def test_files_of_others_are_neither_read_nor_appended_to(tmp_path: Path, first_line: str, message: str) -> None:
    path = tmp_path / FILE_NAME
    path.write_text(first_line)
    with pytest.raises(UserError, match=message):
        Journal(tmp_path).read()
    with pytest.raises(UserError, match=message):
        Journal(tmp_path).append(run_summaries(1, 0)[0])
    assert path.read_text() == first_line


def test_damage_in_the_middle_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, run_summaries(2, 0))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:2], "{damaged\n", *lines[3:]]))
    with pytest.raises(UserError, match="line 3 is damaged"):
        Journal(tmp_path).read()


def test_no_file_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--energy-dir"):
        Journal(tmp_path).read()


def test_a_line_is_on_disk_before_the_next_begins(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for count, summary in enumerate(run_summaries(3, 0), start=1):
        journal.append(summary)
        assert len(Journal(tmp_path).read()) == count
    journal.close()
