"""The same iteration for https://ui.perfetto.dev and chrome://tracing: spans, and clock and power as counters.

The file is Chrome's trace event format: ``X`` slices with ``ts`` and ``dur`` in microseconds, ``M`` names, ``C`` counters.
Every rank is a process of its own, so that its counters stand beneath it; the baseline's ranks come first, the plan's after.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

from megatron_energy.observe.clocks import iteration_window
from megatron_energy.observe.plain import write_json
from megatron_energy.records.iteration import RankIteration, Span

Event: TypeAlias = dict[str, Any]

MICROSECONDS = 1e6
PIDS_PER_GROUP = 1_000_000
"""Room for the ranks of one group: pid = group x this + rank + 1."""


def chrome_trace(groups: Mapping[str, Sequence[RankIteration]]) -> dict[str, Any]:
    """Trace of several iterations, each moved to begin at 0 so that they can be compared.

    Args:
        groups: name, such as ``baseline`` or ``plan``, to the ranks of one iteration; the order is kept.

    Returns:
        An object for :func:`write_trace` or ``json.dump``.
    """
    events: list[Event] = []
    for number, (name, rows) in enumerate(groups.items()):
        if not rows:
            continue
        origin_s, _ = iteration_window(rows)
        for row in rows:
            pid = number * PIDS_PER_GROUP + row.rank + 1
            events += _names(pid, f"{name}{' (emulated)' if row.emulated else ''}: rank {row.rank}")
            events += [_slice(pid, span, origin_s) for span in row.spans]
            events += [_counter(pid, "SM clock", "MHz", time - origin_s, clock) for time, clock in row.clock_changes]
            events += [_counter(pid, "power", "W", time - origin_s, power) for time, power in power_steps(row)]
    emulated = any(row.emulated for rows in groups.values() for row in rows)
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"emulated": emulated}}


def write_trace(path: str | Path, groups: Mapping[str, Sequence[RankIteration]]) -> None:
    """Write :func:`chrome_trace` as JSON."""
    write_json(path, chrome_trace(groups), indent=None)


def power_steps(row: RankIteration) -> list[tuple[float, float]]:
    """Power as (s, W) in force from then on, ending with 0 at the last reading.

    It is the difference of neighbouring counter readings over their distance. With fewer than two usable readings it is
    the iteration's mean. A counter that fell is a gap: 0 until the next pair.
    """
    readings = [(time, float(mj) / 1000) for time, mj in row.energy_samples]
    pairs = [(a, b) for a, b in pairwise(readings) if b[0] > a[0]]
    if not pairs:
        return [(row.start_s, row.power_w), (row.end_s, 0.0)]
    steps = [(start_s, max(0.0, (end_j - start_j) / (end_s - start_s))) for (start_s, start_j), (end_s, end_j) in pairs]
    return [*steps, (pairs[-1][1][0], 0.0)]


def _names(pid: int, name: str) -> list[Event]:
    return [
        {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}},
        {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": pid}},
        {"ph": "M", "pid": pid, "tid": 0, "name": "thread_name", "args": {"name": "GPU"}},
    ]


def _slice(pid: int, span: Span, origin_s: float) -> Event:
    arguments: dict[str, Any] = {"clock_mhz": span.clock_mhz}
    if span.microbatch >= 0:
        arguments |= {"microbatch": span.microbatch, "chunk": span.chunk}
    if span.throttled:
        arguments["throttled"] = True
    return {
        "ph": "X",
        "pid": pid,
        "tid": 0,
        "cat": span.activity,
        "name": f"{span.activity} {span.microbatch}" if span.microbatch >= 0 else span.activity,
        "ts": (span.start_s - origin_s) * MICROSECONDS,
        "dur": (span.end_s - span.start_s) * MICROSECONDS,
        "args": arguments,
    }


def _counter(pid: int, name: str, unit: str, time_s: float, value: float) -> Event:
    return {"ph": "C", "pid": pid, "name": f"{name}, {unit}", "ts": time_s * MICROSECONDS, "args": {unit: value}}
