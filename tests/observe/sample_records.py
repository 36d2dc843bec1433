"""Synthetic records of a small job, for tests: 2 nodes of 8 GPUs, TP2 x PP4 x DP2, 1F1B or two chunks per stage.

Nothing here imports the pipeline or the emulation: orders and times are made by a few lines that can be checked by hand.
"""

from collections.abc import Callable
from dataclasses import dataclass

from megatron_energy.records.iteration import RankIteration, Span
from megatron_energy.records.summary import GpuSummary, IterationSummary, Phase

MAX_CLOCK_MHZ = 1410
BLOCKING_W = 80.0

ClockOf = Callable[[int, str, int], int]
"""(stage, forward or backward, position in the stage's order) -> SM clock in MHz."""


@dataclass(frozen=True)
class Operation:
    """A forward or backward of one chunk for one microbatch."""

    kind: str
    chunk: int
    microbatch: int


def order(stage: int, stages: int, microbatches: int, chunks: int = 1) -> list[Operation]:
    """1F1B, or its interleaved form with groups of ``stages`` microbatches."""
    total = microbatches * chunks

    def at(position: int, kind: str) -> Operation:
        group, rest = divmod(position, stages * chunks)
        chunk, within = divmod(rest, stages)
        return Operation(kind, chunk if kind == "forward" else chunks - 1 - chunk, group * stages + within)

    warmup = min(total, stages - stage - 1 if chunks == 1 else 2 * (stages - stage - 1) + (chunks - 1) * stages)
    operations = [at(i, "forward") for i in range(warmup)]
    for i in range(total - warmup):
        operations += [at(warmup + i, "forward"), at(i, "backward")]
    return operations + [at(i, "backward") for i in range(total - warmup, total)]


def maximum(stage: int, kind: str, position: int) -> int:
    """The baseline: every operation at the maximum clock."""
    return MAX_CLOCK_MHZ


def three_segments(stage: int, kind: str, position: int) -> int:
    """A plan-like choice: earlier stages slower, warm-up and cool-down slower still."""
    if stage == 3 and 4 <= position < 28:
        return MAX_CLOCK_MHZ
    return 1110 + 60 * stage + (30 if 6 <= position < 26 else 0)


def operation_s(kind: str, stage: int, clock_mhz: float) -> float:
    """80% of the time scales with the clock; a backward takes twice a forward; the last stage is 15% slower."""
    base = (0.05 if kind == "forward" else 0.10) * (1.15 if stage == 3 else 1.0)
    return base * (0.2 + 0.8 * MAX_CLOCK_MHZ / clock_mhz)


def power_w(clock_mhz: float) -> float:
    """100 W and a part that grows with the third power of the clock, 400 W at the maximum."""
    return 100 + 300 * (clock_mhz / MAX_CLOCK_MHZ) ** 3


def simulate(clock_of: ClockOf, *, stages: int = 4, microbatches: int = 8, chunks: int = 1) -> list[list[Span]]:
    """Spans per stage with data dependencies only; gaps between operations become waits. Then grad sync and optimizer."""
    orders = [order(s, stages, microbatches, chunks) for s in range(stages)]
    done: dict[tuple[int, Operation], float] = {}
    rows: list[list[Span]] = [[] for _ in range(stages)]
    position = [0] * stages
    while any(position[s] < len(orders[s]) for s in range(stages)):
        for s in range(stages):
            while position[s] < len(orders[s]):
                operation = orders[s][position[s]]
                needed = _needs(s, operation, stages, chunks)
                if any(key not in done for key in needed):
                    break
                free_s = rows[s][-1].end_s if rows[s] else 0.0
                start_s = max([free_s, *(done[key] for key in needed)])
                if start_s > free_s:
                    rows[s].append(Span("wait", -1, -1, free_s, start_s, MAX_CLOCK_MHZ))
                clock = clock_of(s, operation.kind, position[s])
                end_s = start_s + operation_s(operation.kind, s, clock) / chunks
                rows[s].append(Span(operation.kind, operation.chunk, operation.microbatch, start_s, end_s, clock))  # type: ignore[arg-type]
                done[(s, operation)] = end_s
                position[s] += 1
    end_s = max(row[-1].end_s for row in rows)
    for row in rows:
        if row[-1].end_s < end_s:
            row.append(Span("wait", -1, -1, row[-1].end_s, end_s, MAX_CLOCK_MHZ))
        row.append(Span("grad-sync", -1, -1, end_s, end_s + 0.04, MAX_CLOCK_MHZ))
        row.append(Span("optimizer", -1, -1, end_s + 0.04, end_s + 0.07, MAX_CLOCK_MHZ))
    return rows


def _needs(stage: int, operation: Operation, stages: int, chunks: int) -> list[tuple[int, Operation]]:
    kind, chunk, microbatch = operation.kind, operation.chunk, operation.microbatch
    if kind == "forward":
        if stage > 0:
            return [(stage - 1, operation)]
        return [(stages - 1, Operation(kind, chunk - 1, microbatch))] if chunk > 0 else []
    needed = [(stage, Operation("forward", chunk, microbatch))]
    if stage < stages - 1:
        needed.append((stage + 1, operation))
    elif chunk < chunks - 1:
        needed.append((0, Operation(kind, chunk + 1, microbatch)))
    return needed


def rank_iteration(rank: int, iteration: int, spans: list[Span], start_s: float = 0.0, *, emulated: bool = True) -> RankIteration:
    """A record around spans that begin at 0: clock changes, energy and counter samples every 0.1 s follow from them."""
    moved = [Span(s.activity, s.chunk, s.microbatch, s.start_s + start_s, s.end_s + start_s, s.clock_mhz) for s in spans]
    changes: list[tuple[float, int]] = [(start_s, int(moved[0].clock_mhz))]
    for span in moved:
        if span.activity != "wait" and int(span.clock_mhz) != changes[-1][1]:
            changes.append((span.start_s, int(span.clock_mhz)))
    end_s = moved[-1].end_s
    samples = [(start_s + 0.1 * k, round(1000 * energy_j(moved, start_s + 0.1 * k))) for k in range(int((end_s - start_s) / 0.1) + 1)]
    return RankIteration(
        rank=rank,
        iteration=iteration,
        start_s=start_s,
        end_s=end_s,
        energy_j=energy_j(moved, end_s),
        spans=moved,
        clock_changes=changes,
        energy_samples=samples,
        requests=len(changes) - 1,
        emulated=emulated,
    )


def energy_j(spans: list[Span], until_s: float) -> float:
    """Energy of the spans up to a time: waits at blocking power, everything else by its clock."""
    return sum(max(0.0, min(s.end_s, until_s) - s.start_s) * (BLOCKING_W if s.activity == "wait" else power_w(s.clock_mhz)) for s in spans)


def pipeline_iteration(clock_of: ClockOf = maximum, *, iteration: int = 1, start_s: float = 0.0, chunks: int = 1) -> list[RankIteration]:
    """One rank per stage, first stage first."""
    return [rank_iteration(4 * s, iteration, spans, start_s) for s, spans in enumerate(simulate(clock_of, chunks=chunks))]


def job_summary(iteration: int, phase: Phase, stages: list[RankIteration], *, emulated: bool = True) -> IterationSummary:
    """The whole job: each stage has 4 GPUs (TP2 x DP2) that differ a little, replica d on node d."""
    gpus = []
    for stage, row in enumerate(stages):
        for data in range(2):
            for tensor in range(2):
                gpu = 2 * stage + tensor
                energy = row.energy_j * (1 + 0.004 * (gpu - 3.5) + 0.002 * data)
                gpus.append(
                    GpuSummary(
                        rank=4 * stage + 2 * data + tensor,
                        node=f"node{data}",
                        gpu=gpu,
                        uuid=f"GPU-{data}{gpu}",
                        stage=stage,
                        tensor=tensor,
                        data=data,
                        energy_j=energy,
                        power_w=energy / row.time_s,
                        clock_mhz=sum(s.clock_mhz * (s.end_s - s.start_s) for s in row.spans) / row.time_s,
                        waiting_s=sum(s.end_s - s.start_s for s in row.spans if s.activity == "wait"),
                        requests=row.requests,
                    )
                )
    return IterationSummary(iteration, phase, stages[0].time_s, gpus, emulated=emulated)


def run_summaries(baseline: int = 3, planned: int = 5, *, emulated: bool = True) -> list[IterationSummary]:
    """A whole run: a baseline window, then iterations under a plan, with savings against the window."""
    found = pipeline_iteration(maximum)
    reference = job_summary(0, "baseline", found, emulated=emulated)
    before = [job_summary(i, "baseline", found, emulated=emulated) for i in range(1, baseline + 1)]
    stages = pipeline_iteration(three_segments)
    after = [job_summary(i, "planned", stages, emulated=emulated) for i in range(baseline + 1, baseline + planned + 1)]
    for summary in after:
        summary.plan_version = 1
        summary.saved_percent = 100 * (1 - summary.energy_j / reference.energy_j)
        summary.slowdown_percent = 100 * (summary.time_s / reference.time_s - 1)
        summary.expected_time_s = summary.time_s * 0.999
        summary.expected_energy_j = summary.energy_j * 1.002
    return before + after
