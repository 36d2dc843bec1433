"""What it is worth to plan for GPUs that are slower than their fellows: a Markdown table.

    python tools/evaluate_groups.py [--workload catalog|published] [--microbatches 16] [--max-switches 8]

Jobs with one slow GPU in a tensor-parallel group, one slow replica, and replicas that exchange tokens between experts. Three plans each,
all judged on the job as it is, against its own baseline (all GPUs at their highest clock, the slow ones holding up the others):

- *as if healthy*: made from the profile of the healthy GPUs, the same clocks for all GPUs of a stage. It may be late.
- *one per stage*: made from the profile of the slowest GPU of every stage, the same clocks for all GPUs of a stage. It is not late.
- *per GPU*: own clocks for every kind of GPU of every kind of replica.

The published workload is GPT-3 175B on A100-SXM from $MEGATRON_ENERGY_DATA; the catalog's is emulated. Slow GPUs are made up in both.
"""

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from mistakes import told

from megatron_energy.emulation.catalog import load
from megatron_energy.emulation.costs import Sizes
from megatron_energy.emulation.workload import Workload
from megatron_energy.errors import UserError
from megatron_energy.parallel.layout import Layout
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.planning.assemble import Purpose
from megatron_energy.planning.bound import bound
from megatron_energy.planning.job_plan import plan_job
from megatron_energy.planning.job_problem import JobProblem
from megatron_energy.planning.job_setup import job_problem
from megatron_energy.planning.plan import LAYOUT, Plan
from megatron_energy.planning.replicas import stage_of_rank
from megatron_energy.profiles.files import load_profile
from megatron_energy.profiles.profile import Curve, Profile
from megatron_energy.profiles.ranks import RankProfiles

GPU = "a100-sxm4-80gb"
CLOCK_STEP_MHZ = 30
LOWEST_CLOCK_MHZ = 800
PUBLISHED = "perseus_sosp24/stage_profile/gpt3-175b+a100_sxm_bf16.csv"
PUBLISHED_BLOCKING_W = 83.64  # Perseus (SOSP'24), A100-80G


@dataclass(frozen=True)
class Case:
    """A job with slow GPUs: how many times as long (replica, stage, tensor rank) or all GPUs of a replica take."""

    name: str
    tensor: int = 1
    expert: int = 1
    data: int = 1
    slow_gpus: Mapping[tuple[int, int, int], float] = field(default_factory=dict)
    slow_replicas: Mapping[int, float] = field(default_factory=dict)

    def layout(self, stages: int) -> Layout:
        """The ranks."""
        return Layout(tensor=self.tensor, expert=self.expert, data=self.data, pipeline=stages)

    def slower(self, layout: Layout) -> dict[int, float]:
        """By rank."""
        places = [layout.coordinates(rank) for rank in range(layout.world_size)]
        factors = {rank: self.slow_replicas.get(at.dp, self.slow_gpus.get((at.dp, at.pp, at.tp), 1.0)) for rank, at in enumerate(places)}
        return {rank: factor for rank, factor in factors.items() if factor != 1.0}


CASES = (
    Case("TP 4, a GPU of stage 0 is 5% slower", tensor=4, slow_gpus={(0, 0, 1): 1.05}),
    Case("TP 4, a GPU of stage 1 is 5% slower", tensor=4, slow_gpus={(0, 1, 1): 1.05}),
    Case("TP 4, a GPU of stage 1 is 10% slower", tensor=4, slow_gpus={(0, 1, 1): 1.1}),
    Case("DP 2, a replica is 10% slower", data=2, slow_replicas={1: 1.1}),
    Case("DP 2, a GPU of stage 1 is 10% slower", data=2, slow_gpus={(1, 1, 0): 1.1}),
    Case("DP 2 x TP 4, a GPU of stage 1 is 5% slower", tensor=4, data=2, slow_gpus={(1, 1, 1): 1.05}),
    Case("EP 2, a GPU of stage 1 is 10% slower", data=2, expert=2, slow_gpus={(1, 1, 0): 1.1}),
    Case("DP 4 in two EP groups, a GPU of stage 1 is 10% slower", data=4, expert=2, slow_gpus={(1, 1, 0): 1.1}),
)


@dataclass(frozen=True)
class Job:
    """A workload on healthy GPUs."""

    profile: Profile
    blocking_power_w: float
    schedule: Schedule


def catalog_job(case: Case, stages: int, chunks: int, microbatches: int) -> Job:
    """gpt3-13b on emulated A100, Megatron's p2p with overlap."""
    gpu = load(GPU)
    sizes = Sizes(stages=stages, chunks=chunks, tensor=case.tensor, data=case.data)
    workload = Workload.from_model(gpu, "gpt3-13b", sizes, micro_batch=4)
    clocks_mhz = range(gpu.sm_clock_max_mhz, LOWEST_CLOCK_MHZ, -CLOCK_STEP_MHZ)
    curves = {}
    for stage, chunk, kind in workload.costs:
        points = [workload.point(stage, chunk, kind, mhz, gpu.power_limit_default_w) for mhz in clocks_mhz]
        time_s = np.array([point.time_s for point in points])
        curves[stage, chunk, str(kind)] = Curve(np.array(clocks_mhz), time_s, time_s * np.array([point.power_w for point in points]))
    curves[0, -1, "p2p"] = Curve(np.array([0]), np.array([workload.transfer_s]), np.zeros(1))
    return Job(Profile(curves), gpu.blocking_power_w, Schedule(stages, microbatches, chunks, p2p="overlap"))


def published_job(microbatches: int) -> Job:
    """GPT-3 175B on 8 stages of 2 chunks, Megatron's p2p with overlap. Its stages 0 to 6 are alike."""
    folder = os.environ.get("MEGATRON_ENERGY_DATA")
    if not folder:
        raise UserError("set MEGATRON_ENERGY_DATA to the folder with the published profiles, or use --workload catalog")
    profile = load_profile(Path(folder) / PUBLISHED, scale=10)  # the file is at a tenth of the scale
    return Job(profile, PUBLISHED_BLOCKING_W, Schedule(8, microbatches, 2, p2p="overlap"))


@dataclass(frozen=True)
class Row:
    """One case: (saved, slowdown) in percent of each plan, the bound, and the plan per GPU."""

    name: str
    healthy: tuple[float, float]
    per_stage: tuple[float, float]
    per_gpu: tuple[float, float]
    bound_percent: float
    plan: Plan

    @property
    def cells(self) -> dict[str, str]:
        """As the table has them."""
        saved = [f"{saved:.2f} at {slowdown + 0.0:+.2f}" for saved, slowdown in (self.healthy, self.per_stage, self.per_gpu)]
        gained = f"{self.per_gpu[0] - self.per_stage[0]:+.2f}"
        bound, lists, switches = f"{self.bound_percent:.2f}", f"{len(self.plan.units)}", f"{self.plan.switches_max}"
        return dict(zip(COLUMNS, (f"{self.plan.gpus}", *saved, gained, bound, lists, switches), strict=True))


COLUMNS = ("GPUs", "as if healthy", "one per stage", "per GPU", "gained, points", "bound", "lists of clocks", "switches, most")


def evaluate(case: Case, job: Job, max_switches: int, effort: str = "default") -> Row:
    """Plan a case three times."""
    layout = case.layout(job.schedule.stages)
    ranks = RankProfiles.alike(job.profile, layout.world_size, case.slower(layout))
    purpose = Purpose({name: getattr(layout, name) for name in LAYOUT}, job.schedule, "segments", max_switches)

    def problem(profiles: RankProfiles) -> JobProblem:
        return job_problem(job.schedule, layout, profiles, job.blocking_power_w)

    real = problem(ranks)
    healthy = plan_job(problem(RankProfiles.alike(job.profile, layout.world_size)), purpose, effort=effort)
    per_stage = plan_job(problem(ranks.merged(stage_of_rank(layout))), purpose, effort=effort)
    per_gpu = plan_job(real, purpose, effort=effort, starts=[per_stage, healthy])
    found = [real.evaluate(real.planned_clocks(plan)) for plan in (healthy, per_stage, per_gpu)]
    figures = [(one.saved_percent, one.slowdown_percent) for one in found]
    return Row(case.name, *figures, real.problem.saved_percent(bound(real.problem).energy_j), per_gpu)


def run(arguments: list[str] | None = None) -> int:
    """Print the table. Raises UserError for a mistake of the user's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=("catalog", "published"), default="catalog", help="times and energies (default: catalog)")
    parser.add_argument("--stages", type=int, default=4, help="pipeline stages of the catalog's workload (default: 4)")
    parser.add_argument("--microbatches", type=int, default=16, help="per replica (default: 16)")
    parser.add_argument("--effort", choices=("default", "high"), default="default", help="of every search (high: minutes)")
    parser.add_argument("--max-switches", type=int, default=8, help="per GPU and iteration (default: 8)")
    options = parser.parse_args(arguments)
    print("Saved % at slowdown %. " + ("Figures are emulated." if options.workload == "catalog" else "Replayed on published profiles."))
    print()
    print(f"| job | {' | '.join(COLUMNS)} |\n| --- |{' ---: |' * len(COLUMNS)}", flush=True)
    for case in CASES:
        published = options.workload == "published"
        job = published_job(options.microbatches) if published else catalog_job(case, options.stages, 2, options.microbatches)
        row = evaluate(case, job, options.max_switches, options.effort)
        print(f"| {' | '.join([case.name, *row.cells.values()])} |", flush=True)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Entry point; a mistake is told in one line, exit status 2."""
    return told(lambda: run(arguments))


if __name__ == "__main__":
    sys.exit(main())
