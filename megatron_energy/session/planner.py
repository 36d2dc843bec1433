"""Makes the plan of a run, or checks one that was given, and turns it into directives for ranks."""

import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from megatron_energy import __version__
from megatron_energy.emulation.catalog import load
from megatron_energy.errors import UserError
from megatron_energy.gpus.library import is_emulated
from megatron_energy.pipeline.build import build_graph
from megatron_energy.pipeline.graph import Graph
from megatron_energy.pipeline.match import first_difference, match, possible_modes
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.planning.assemble import Purpose, assemble
from megatron_energy.planning.plan import Plan, check_plan
from megatron_energy.planning.plan_file import load_plan
from megatron_energy.planning.policies import Solution, solve
from megatron_energy.planning.problem import Problem
from megatron_energy.profiles.curves import interpolate_profile
from megatron_energy.profiles.files import load_profile
from megatron_energy.profiles.profile import Profile
from megatron_energy.profiles.remarks import uneven_clocks
from megatron_energy.profiles.sizes import check_sizes
from megatron_energy.profiles.tables import build_tables, has_instruction, transfer_time_s
from megatron_energy.records.steps import Compute, Post, Program, Wait
from megatron_energy.session.facts import JobFacts
from megatron_energy.session.given import LEARNED, Here, check_options, check_origin, check_requests
from megatron_energy.session.learning import LearningError, with_transfer_time
from megatron_energy.session.options import EnergyOptions
from megatron_energy.session.planned import PlannedRun
from megatron_energy.session.safer import safer_plan
from megatron_energy.session.trust import Baseline, check_baseline, fitted_transfer_s

Provenance = dict[str, str | float | bool]


def _expectation(plan: Plan, emulated: bool) -> str:
    e = plan.expected
    bound = f"; no plan can save more than {e.bound_saved_percent:.2f}%" if e.bound_saved_percent is not None else ""
    return (
        f"expects {e.saved_percent:.2f}% less energy{' (emulated)' if emulated else ''} at {e.slowdown_percent:+.2f}% time "
        f"({plan.policy}, {plan.switches_mean:.1f} switches per GPU{bound}), p2p {plan.schedule.p2p}"
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
        self._remarks: list[str] = []  # on what the plan is made of, for the line that tells of it

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

    @property
    def emulated(self) -> bool:
        """Whether the GPUs are."""
        return self.options.device == "emulated" or is_emulated()

    @property
    def here(self) -> Here:
        """The run, as far as plans and profiles depend on it."""
        a = self.facts.any
        made_for = f"model {self.fingerprint} tp{a.tensor} cp{a.context} ep{a.expert} pp{a.pipeline}"
        return Here(self.gpu_name, self.clocks_mhz, self.lead_s, made_for)

    def check(self) -> None:
        """Refuse, before training starts, what can be refused by then.

        Raises:
            UserError: a given plan was made for another layout, schedule, communication mode or model; a given profile lacks what
                this pipeline needs, or was measured elsewhere; options contradict a given plan.
        """
        a = self.facts.any
        modes = possible_modes(overlap_p2p_comm=a.overlap_p2p, deallocate_pipeline_outputs=a.deallocate_outputs)
        if self.options.plan is not None:
            plan = load_plan(self.options.plan)
            facts = self.facts.with_microbatches(plan.schedule.microbatches) if a.ramp_up else self.facts
            likely = facts.schedule(plan.schedule.p2p if a.chunks == 1 or plan.schedule.p2p in modes else modes[0])
            check_plan(plan, self.layout, likely, self.fingerprint)
            check_options(self.options, plan)
            check_requests(plan, self.here)
            for rank in self.facts.ranks:  # a plan that tells them apart has each in its stage
                plan.unit(rank.stage, rank.rank)
        profile = self.given_profile()
        if profile is not None:
            check_sizes(profile, a.pipeline, a.chunks)
            check_origin(profile, self.here)
            self._problem(self.facts.schedule(modes[0]), profile)

    def schedule(self, programs: Sequence[Program]) -> Schedule:
        """The schedule with the communication mode that the ranks' programs show.

        Raises:
            ScheduleMismatch: they match no known mode.
            LearningError: not all replicas run the same.
        """
        replicas = self.facts.replicas()
        found = match([programs[rank] for rank in replicas[0]], self.facts.schedule())
        seen = [_steps(programs[rank]) for rank in replicas[0]]
        for ranks in replicas[1:]:
            for stage, rank in enumerate(ranks):
                steps = _steps(programs[rank])
                if steps != seen[stage]:
                    difference = first_difference([*seen[:stage], steps, *seen[stage + 1 :]], found)
                    raise LearningError(f"rank {rank} does not run what rank {replicas[0][stage]} runs ({difference})")
        return found

    def given_plan(self, schedule: Schedule, measured: Baseline) -> PlannedRun | None:
        """The user's plan, if there is one.

        Raises:
            UserError: it was made for something else.
            LearningError: it expects another baseline than the measured one.
        """
        if self.options.plan is None:
            return None
        plan = load_plan(self.options.plan)
        check_plan(plan, self.layout, schedule if self.facts.any.chunks > 1 else plan.schedule, self.fingerprint)
        expected = Baseline(plan.expected.baseline_iteration_s, plan.expected.baseline_energy_j)
        unexplained = check_baseline(f"the plan {self.options.plan}", expected, measured)
        self.say(f"plan {self.options.plan}: {_expectation(plan, self.emulated)}; {unexplained}")
        return PlannedRun(plan, self.facts.stage_of_rank)

    def microbatches_of_given_plan(self) -> int | None:
        """Microbatches per iteration that the user's plan is for; None: there is no such plan."""
        return load_plan(self.options.plan).schedule.microbatches if self.options.plan is not None else None

    def given_profile(self) -> Profile | None:
        """The user's profile, if there is one."""
        return load_profile(self.options.profile) if self.options.profile is not None else None

    def provenance(self) -> Provenance:
        """Where figures of this run come from."""
        return {
            "source": LEARNED,
            "gpu": self.gpu_name,
            "made_for": self.here.made_for,
            "emulated": self.emulated,
            "megatron_core": self.facts.any.core_version,
            "megatron_energy": __version__,
            "python": platform.python_version(),
        }

    def calibrated(self, schedule: Schedule, profile: Profile, measured: Baseline) -> Profile:
        """A profile that has been compared with the measured baseline.

        Where it was learned, or says nothing about transfers, they are given the time that makes the replayed baseline as long as the
        measured one.

        Args:
            schedule: of the run.
            profile: as learned or given.
            measured: the baseline.

        Raises:
            LearningError: the profile does not explain the baseline.
        """
        given = self.options.profile
        self._remarks = []
        if given is None or not has_instruction(profile, "p2p"):
            unit = self._problem(schedule, profile, transfer_s=1.0)
            transfer_s = fitted_transfer_s(unit.graph, unit.durations(unit.baseline_clocks), measured.time_s, transfer_time_s(profile))
            if transfer_s > 0:
                profile = with_transfer_time(profile, transfer_s)
                self._remarks += [f"a transfer takes {1e3 * transfer_s:.3g} ms, fitted to the baseline"] if given is not None else []
        problem = self._problem(schedule, profile)
        expected = Baseline(problem.baseline_s, problem.baseline_energy_j * problem.gpus_per_unit)
        made = "the learned profile" if given is None else f"the profile {given}"
        self._remarks.append(check_baseline(made, expected, measured))
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
        remarks = [_expectation(plan, self.emulated), *self._remarks, *self._shortcomings(problem.graph, profile, solution)]
        self.say(f"plan made in {plan.solve_s:.1f} s: {'; '.join(remarks)}")
        return PlannedRun(plan, self.facts.stage_of_rank)

    def _shortcomings(self, graph: Graph, profile: Profile, solution: Solution) -> list[str]:
        """What the plan would be better with."""
        found = [line] if (line := uneven_clocks(profile)) else []
        if profile.blocking_power_w is None and len(graph.units) > 1:
            found.append(f"blocking power {self._blocking_power_w(graph, profile):g} W of the catalog, as the profile has none")
        if not solution.complete:
            found.append("the search ran out of time, so a longer one may save more")
        return found

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
        return Problem(graph, tables, self._blocking_power_w(graph, profile), gpus_per_unit, self.options.slowdown)

    def _blocking_power_w(self, graph: Graph, profile: Profile) -> float:
        """W of a GPU that waits: the profile's; the catalog's, which an emulated GPU draws by definition; 0 where nobody waits."""
        if profile.blocking_power_w is not None:
            return profile.blocking_power_w
        if len(graph.units) == 1:
            return 0.0
        if self.options.device != "emulated":
            raise UserError("the profile has no blocking power: add a row `blocking` (time in s, energy in J of a GPU that waits)")
        return load(self.options.emulated_gpu).blocking_power_w


def _steps(steps: Program) -> Program:
    """What :func:`~megatron_energy.pipeline.match.match` compares."""
    return [step for step in steps if isinstance(step, Compute | Post | Wait)]
