"""From records of all ranks to the one-line summary of an iteration."""

from collections.abc import Sequence

from megatron_energy.records.iteration import RankIteration, job_time_s
from megatron_energy.records.summary import GpuSummary, IterationSummary, Phase
from megatron_energy.session.facts import JobFacts, RankFacts
from megatron_energy.session.findings import Findings


def summarise(
    iteration: int,
    phase: Phase,
    records: Sequence[RankIteration],
    energies_j: Sequence[float],
    uuids: Sequence[str],
    facts: JobFacts,
    findings: Findings,
    plan_version: int = 0,
) -> IterationSummary:
    """Summary of one iteration.

    Args:
        iteration: Megatron's number of it, the first is 1.
        phase: what the iteration was for.
        records: by rank.
        energies_j: by rank, what its GPU's energy counter advanced by.
        uuids: by rank, its GPU.
        facts: the job.
        findings: the baseline to compare with, and the plan.
        plan_version: 0 where no plan was in force.
    """
    time_s = job_time_s(records)
    gpus = [_gpu(r, e, u, facts.ranks[r.rank]) for r, e, u in zip(records, energies_j, uuids, strict=True)]
    summary = IterationSummary(iteration, phase, time_s, gpus, plan_version, emulated=any(r.emulated for r in records))
    baseline_s, baseline_j = findings.compared_with
    comparable = findings.comparable and not findings.after_evaluation
    if phase not in ("baseline", "sweep", "evaluation") and comparable and baseline_s and baseline_j:
        summary.saved_percent = 100 * (1 - summary.energy_j / baseline_j)
        summary.slowdown_percent = 100 * (time_s / baseline_s - 1)
    if phase == "planned" and findings.planned is not None:  # it is known one iteration before it comes into force
        summary.expected_time_s = findings.planned.expected_time_s
        summary.expected_energy_j = findings.planned.expected_energy_j
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
    )
