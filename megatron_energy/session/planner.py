"""Makes the plan of a run, or checks one that was given, and turns it into directives for ranks."""

import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from megatron_energy import __version__
from megatron_energy.emulation.catalog import load
from megatron_energy.errors import UserError
from megatron_energy.pipeline.build import build_graph
from megatron_energy.pipeline.match import match, mode_of
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.planning.assemble import Purpose, assemble
from megatron_energy.planning.plan import Plan, check_plan, load_plan
from megatron_energy.planning.policies import solve
from megatron_energy.planning.problem import Problem
from megatron_energy.profiles.curves import interpolate_profile
from megatron_energy.profiles.files import load_profile
from megatron_energy.profiles.profile import Profile
from megatron_energy.profiles.tables import build_tables, has_instruction, transfer_time_s
from megatron_energy.records.steps import Program
from megatron_energy.session.facts import JobFacts
from megatron_energy.session.learning import with_transfer_time
from megatron_energy.session.options import EnergyOptions
from megatron_energy.session.planned import PlannedRun
from megatron_energy.session.safer import safer_plan
from megatron_energy.session.trust import check_baseline, fitted_transfer_s

Provenance = dict[str, str | float | bool]


def _exists(schedule: Schedule, kind: str, chunk: int, microbatch: int) -> bool:
    """Whether such an operation, or grad-sync or optimizer step, is part of an iteration."""
    if kind in ("forward", "backward"):
        return 0 <= chunk < schedule.chunks and 0 <= microbatch < schedule.microbatches
    return kind in ("grad-sync", "optimizer")


def _expectation(plan: Plan) -> str:
    e = plan.expected
    bound = f"; no plan can save more than {e.bound_saved_percent:.2f}%" if e.bound_saved_percent is not None else ""
    return (
        f"expects {e.saved_percent:.2f}% less energy at {e.slowdown_percent:+.2f}% time "
        f"({plan.switches_mean:.1f} switches per GPU{bound}), p2p {plan.schedule.p2p}"
    )


class Planner:
    """Plans for one job; on the home rank.

    Args:
        options: what the user asked for.
        facts: the job.
        clocks_mhz: supported clocks.
        lead_s: how early raises have to be requested.
        gpu_name: for the plan's provenance.
        say: prints one line for the user.
    """

    def __init__(
        self, options: EnergyOptions, facts: JobFacts, clocks_mhz: Sequence[int], lead_s: float, gpu_name: str, say: Callable[[str], None]
    ) -> None:
        self.options = options
        self.facts = facts
        self.clocks_mhz = clocks_mhz
        self.lead_s = lead_s
        self.gpu_name = gpu_name
        self.say = say
        self._unexplained = ""  # of the baseline, by the learned profile

    @property
    def layout(self) -> dict[str, int]:
        """Parallel sizes by name."""
        a = self.facts.any
        return {"tensor": a.tensor, "context": a.context, "expert": a.expert, "data": a.data, "pipeline": a.pipeline}

    @property
    def fingerprint(self) -> str:
        """Of the model whose times count: the one in training, or the named one."""
        o = self.options
        named = f"-{Path(o.emulated_model).stem}x{o.emulated_micro_batch}" if o.emulated_model is not None else ""
        return f"{self.facts.fingerprint()}{named}"

    def check(self) -> None:
        """Refuse, before training starts, what can be refused by then.

        Raises:
            UserError: a given plan was made for another layout, schedule, communication mode or model; a given profile lacks what
                this pipeline needs.
        """
        a = self.facts.any
        mode = mode_of(a.core_version, overlap_p2p_comm=a.overlap_p2p, deallocate_pipeline_outputs=a.deallocate_outputs)
        if self.options.plan is not None:
            plan = load_plan(self.options.plan)
            likely = self.facts.schedule(mode if a.chunks > 1 else plan.schedule.p2p)
            check_plan(plan, self.layout, likely, self.fingerprint)
            self._check_requests(plan)
            for rank in self.facts.ranks:  # a plan that tells them apart has each in its stage
                plan.unit(rank.stage, rank.rank)
        profile = self.given_profile()
        if profile is not None:
            self._problem(self.facts.schedule(mode), profile)

    def _check_requests(self, plan: Plan) -> None:
        """Whether the plan's clocks can be brought about here, where it says, and in time."""
        named = [(s.kind, s.chunk, s.microbatch) for unit in plan.units for s in unit.segments]
        named += [(r.kind, r.chunk, r.microbatch) for unit in plan.units for r in unit.requests]
        for kind, chunk, microbatch in named:
            if not _exists(plan.schedule, kind, chunk, microbatch):
                raise UserError(f"the plan names {kind} {microbatch} of chunk {chunk}, which its schedule has not: make it again")
        unsupported = sorted(plan.clocks_mhz - set(self.clocks_mhz))
        if unsupported:
            raise UserError(f"the plan uses {unsupported[0]} MHz, which {self.gpu_name} does not support: make a plan for this GPU")
        for unit in plan.units:
            changes = sorted(s.clock_mhz for s in unit.segments) if unit.switches else []
            asked = sorted(r.clock_mhz for r in unit.requests)
            if asked != changes or any(r.delay_s < 0 for r in unit.requests):
                raise UserError(f"the plan's requests for stage {unit.stage} do not bring its segments about: make it again")
        made_for = plan.provenance.get("gpu")
        if made_for is not None and made_for != self.gpu_name:
            raise UserError(f"the plan was made for {made_for}, this run has {self.gpu_name}: make a plan for this GPU")
        if plan.switches_max and plan.lead_s < self.lead_s - 1e-6:
            raise UserError(
                f"the plan requests raises {plan.lead_s:.3f} s early, but this node needs {self.lead_s:.3f} s: "
                f"make it with --lead {self.lead_s:.3f}"
            )

    def schedule(self, programs: Sequence[Program]) -> Schedule:
        """The schedule with the communication mode that the ranks' programs show.

        Raises:
            ScheduleMismatch: they match no known mode.
        """
        first = [self.facts.ranks_where(stage=s, data_rank=0, tensor_rank=0, context_rank=0)[0] for s in range(self.facts.any.pipeline)]
        return match([programs[rank] for rank in first], self.facts.schedule())

    def given_plan(self, schedule: Schedule) -> PlannedRun | None:
        """The user's plan, if there is one.

        Raises:
            UserError: it was made for something else.
        """
        if self.options.plan is None:
            return None
        plan = load_plan(self.options.plan)
        check_plan(plan, self.layout, schedule if self.facts.any.chunks > 1 else plan.schedule, self.fingerprint)
        self.say(f"plan {self.options.plan}: {_expectation(plan)}")
        return PlannedRun(plan, self.facts.stage_of_rank)

    def given_profile(self) -> Profile | None:
        """The user's profile, if there is one."""
        return load_profile(self.options.profile) if self.options.profile is not None else None

    def provenance(self) -> Provenance:
        """Where figures of this run come from."""
        return {
            "source": "learned in a live run",
            "gpu": self.gpu_name,
            "emulated": self.options.device == "emulated",
            "megatron_core": self.facts.any.core_version,
            "megatron_energy": __version__,
            "python": platform.python_version(),
        }

    def calibrated(self, schedule: Schedule, profile: Profile, measured_s: float, measured_j: float) -> Profile:
        """A learned profile with the transfer time that makes the replayed baseline as long as the measured one.

        Args:
            schedule: of the run.
            profile: as learned.
            measured_s: mean iteration time of the baseline window.
            measured_j: mean joules of all GPUs.

        Raises:
            LearningError: the profile does not explain the baseline.
        """
        unit = self._problem(schedule, profile, transfer_s=1.0)
        transfer_s = fitted_transfer_s(unit.graph, unit.durations(unit.baseline_clocks), measured_s, transfer_time_s(profile))
        if transfer_s > 0:
            profile = with_transfer_time(profile, transfer_s)
        self._unexplained = "; " + check_baseline(self._problem(schedule, profile), measured_s, measured_j)
        return profile

    def plan(self, schedule: Schedule, profile: Profile) -> PlannedRun:
        """Plan from a profile.

        Raises:
            UserError: the profile does not fit.
        """
        problem = self._problem(schedule, profile)
        policy = "segments" if self.options.policy == "dry-run" else str(self.options.policy)
        begin_s = time.perf_counter()
        solution = solve(problem, policy, max_switches=self.options.max_switches, lead_s=self.lead_s)
        purpose = Purpose(self.layout, schedule, policy, self.options.max_switches, self.lead_s, self.fingerprint, profile.provenance)
        plan = assemble(
            problem,
            solution.clocks,
            purpose,
            bound_energy_j=solution.bound.energy_j,
            limit_energy_j=solution.limit_energy_j,
            solve_s=time.perf_counter() - begin_s,
        )
        self.say(f"plan made in {plan.solve_s:.1f} s: {_expectation(plan)}{self._unexplained}")
        return PlannedRun(plan, self.facts.stage_of_rank)

    def safer(self, planned: PlannedRun, profile: Profile | None) -> PlannedRun | None:
        """A more careful version of a plan that costs more time than it promised; None where there is none.

        Args:
            planned: made by :meth:`plan`, or given.
            profile: it was made from; None: a given plan, of which nothing more is known.
        """
        if profile is None:
            return None
        plan = safer_plan(self._problem(planned.plan.schedule, profile), planned.plan)
        return None if plan is None else PlannedRun(plan, self.facts.stage_of_rank, planned.version + 1)

    def _check_top_clock(self, profile: Profile) -> None:
        """A baseline below the GPU's maximum clock would be slower than the GPUs as found, and so would the plan."""
        top_mhz = max(self.clocks_mhz)
        for (stage, _, instruction), curve in profile.curves.items():
            if instruction in ("forward", "backward") and curve.clock_mhz[0] < top_mhz and stage < self.facts.any.pipeline:
                raise UserError(
                    f"the profile has {instruction} of stage {stage} up to {curve.clock_mhz[0]} MHz only, "
                    f"this GPU runs at {top_mhz}: measure it there too"
                )

    def _problem(self, schedule: Schedule, profile: Profile, transfer_s: float | None = None) -> Problem:
        grad_sync, optimizer = has_instruction(profile, "grad-sync"), has_instruction(profile, "optimizer")
        lag_s = transfer_time_s(profile) if transfer_s is None else transfer_s
        graph = build_graph(schedule, transfer_s=lag_s, grad_sync=grad_sync, optimizer=optimizer)
        tables = build_tables(graph, interpolate_profile(profile, self.clocks_mhz), schedule.chunks)
        self._check_top_clock(profile)
        gpus_per_unit = self.facts.world_size // self.facts.any.pipeline
        blocking_w = profile.blocking_power_w if profile.blocking_power_w is not None else load(self.options.emulated_gpu).blocking_power_w
        return Problem(graph, tables, blocking_w, gpus_per_unit, self.options.slowdown)
