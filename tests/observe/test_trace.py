"""The trace file: what Chrome and Perfetto need, in microseconds."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatron_energy.observe.trace import chrome_trace, power_steps, write_trace
from megatron_energy.records.iteration import RankIteration, Span
from tests.observe.sample_records import maximum, pipeline_iteration, three_segments


def events(trace: dict[str, Any], phase: str, pid: int | None = None) -> list[dict[str, Any]]:
    return [e for e in trace["traceEvents"] if e["ph"] == phase and pid in (None, e["pid"])]


def test_slices_are_the_spans_in_microseconds(tmp_path: Path) -> None:
    rows = pipeline_iteration(maximum, start_s=7.0)
    write_trace(tmp_path / "trace.json", {"baseline": rows, "plan": pipeline_iteration(three_segments)})
    trace = json.loads((tmp_path / "trace.json").read_text())
    for row in rows:
        slices = events(trace, "X", row.rank + 1)
        assert [(e["ts"], e["dur"]) for e in slices] == [
            (pytest.approx((s.start_s - 7.0) * 1e6), pytest.approx((s.end_s - s.start_s) * 1e6)) for s in row.spans
        ]
        assert [e["cat"] for e in slices] == [s.activity for s in row.spans]
    first = events(trace, "X", 1)[0]
    assert (first["name"], first["args"]) == ("forward 0", {"clock_mhz": 1410, "microbatch": 0, "chunk": 0})


def test_groups_are_processes_with_names_in_order() -> None:
    trace = chrome_trace({"baseline": pipeline_iteration(), "plan": pipeline_iteration(three_segments)})
    names = [(e["pid"], e["args"]["name"]) for e in events(trace, "M") if e["name"] == "process_name"]
    assert [name for _, name in sorted(names)] == [
        f"{group} (emulated): rank {rank}" for group in ("baseline", "plan") for rank in (0, 4, 8, 12)
    ]
    order = {e["pid"]: e["args"]["sort_index"] for e in events(trace, "M") if e["name"] == "process_sort_index"}
    assert sorted(order, key=order.__getitem__) == sorted(pid for pid, _ in names)
    assert trace["otherData"] == {"emulated": True}


def test_counters_hold_the_clock_and_the_power() -> None:
    row = RankIteration(
        3,
        1,
        10.0,
        12.0,
        700.0,
        [Span("forward", 0, 0, 10.0, 12.0, 1300)],
        [(10.0, 1410), (11.0, 1200)],
        [(10.0, 5_000), (10.5, 155_000), (11.5, 555_000)],
    )
    counters = events(chrome_trace({"plan": [row]}), "C")
    clock = [(e["ts"], e["args"]["MHz"]) for e in counters if e["name"] == "SM clock, MHz"]
    power = [(e["ts"], e["args"]["W"]) for e in counters if e["name"] == "power, W"]
    assert clock == [(0.0, 1410), (1e6, 1200)]
    assert power == [(0.0, 300.0), (0.5e6, 400.0), (1.5e6, 0.0)]


def test_power_without_samples_is_the_mean_and_a_fallen_counter_is_a_gap() -> None:
    row = RankIteration(0, 1, 0.0, 2.0, 700.0)
    assert power_steps(row) == [(0.0, 350.0), (2.0, 0.0)]
    row.energy_samples = [(0.0, 9_000), (1.0, 2_000), (2.0, 252_000)]
    assert power_steps(row) == [(0.0, 0.0), (1.0, 250.0), (2.0, 0.0)]


def test_numpy_values_do_not_break_the_file(tmp_path: Path) -> None:
    span = Span("forward", np.int64(0), np.int64(1), np.float64(0), np.float32(1), np.int64(1410))
    row = RankIteration(0, 1, 0.0, 1.0, np.float64(5.0), [span], [(np.float64(0.0), np.int64(1410))])
    write_trace(tmp_path / "t.json", {"plan": [row]})
    assert events(json.loads((tmp_path / "t.json").read_text()), "X")[0]["args"] == {"clock_mhz": 1410, "microbatch": 1, "chunk": 0}
