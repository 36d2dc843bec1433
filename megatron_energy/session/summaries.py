"""From records of all ranks to the one-line summary of an iteration."""

from collections.abc import Sequence
from dataclasses import dataclass

from megatron_energy.records.iteration import RankIteration, job_time_s
from megatron_energy.records.summary import GpuSummary, IterationSummary, Phase
from megatron_energy.session.facts import JobFacts, RankFacts
from megatron_energy.session.findings import Findings
from megatron_energy.session.planned import PlannedRun


@dataclass(frozen=True)
class Standing:
    """What an iteration was when it ran. The run's findings are further by then where many iterations are reported at once.

    Attributes:
        comparable: it is like those of the baseline: of the same sizes, and not right after an evaluation.
        planned: the plan that it ran under; None: under none.
    """

    comparable: bool = True
    planned: PlannedRun | None = None


def summarise(
    iteration: int,
    phase: Phase,
    records: Sequence[RankIteration],
    energies_j: Sequence[float],
    uuids: Sequence[str],
    facts: JobFacts,
    findings: Findings,
    standing: Standing = Standing(),
) -> IterationSummary:
    """Summary of one iteration.

    Args:
        iteration: Megatron's number of it, the first is 1.
        phase: what the iteration was for.
        records: by rank.
        energies_j: by rank, what its GPU's energy counter advanced by.
        uuids: by rank, its GPU.
        facts: the job.
        findings: the baseline to compare with.
        standing: of this iteration.
    """
    time_s = job_time_s(records)
    gpus = [_gpu(r, e, u, facts.ranks[r.rank]) for r, e, u in zip(records, energies_j, uuids, strict=True)]
    planned = standing.planned if phase == "planned" else None
    version = planned.version if planned is not None else 0
    summary = IterationSummary(iteration, phase, time_s, gpus, version, emulated=any(r.emulated for r in records))
    baseline_s, baseline_j = findings.compared_with
    if phase not in ("baseline", "sweep", "evaluation") and standing.comparable and baseline_s and baseline_j:
        summary.saved_percent = 100 * (1 - summary.energy_j / baseline_j)
        summary.slowdown_percent = 100 * (time_s / baseline_s - 1)
    if planned is not None:
        summary.expected_time_s = planned.expected_time_s
        summary.expected_energy_j = planned.expected_energy_j
    return summary


def _gpu(record: RankIteration, energy_j: float, uuid: str, rank: RankFacts) -> GpuSummary:
    return GpuSummary(
        rank=record.rank,
        node=rank.node,
        gpu=rank.local_rank,
        uuid=uuid,
        stage=rank.stage,
        tensor=rank.tensor_rank,
        data=rank.data_rank,
        energy_j=energy_j,
        power_w=energy_j / record.time_s if record.time_s > 0 else 0.0,
        clock_mhz=record.mean_clock_mhz,
        waiting_s=sum(s.end_s - s.start_s for s in record.spans if s.activity == "wait"),
        requests=record.requests,
        late_raises=record.late_raises,
        throttled_s=record.throttled_s,
        dropped_lowers=record.dropped_lowers,
    )
