"""The course of a run, decided on the home rank: baseline -> sweep -> plan -> run under the plan.

The course is a generator: it yields the directives of the next iteration and receives what that iteration did. That keeps the
order of the phases readable from top to bottom.
"""

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace

from megatron_energy.errors import UserError
from megatron_energy.pipeline.match import ScheduleMismatch
from megatron_energy.records.summary import Phase
from megatron_energy.session.control import Control
from megatron_energy.session.directive import Directive, constant_clock
from megatron_energy.session.facts import JobFacts
from megatron_energy.session.findings import Course, Findings, IterationData
from megatron_energy.session.guarded import Guarded, Limits
from megatron_energy.session.learning import LearningError, learn_profile, transfer_time_s
from megatron_energy.session.options import UNPLANNED, EnergyOptions
from megatron_energy.session.planned import PlannedRun
from megatron_energy.session.planner import Planner
from megatron_energy.session.sweep import ITERATIONS_PER_CLOCK, held_clocks_mhz, sweep_clocks_mhz
from megatron_energy.session.trust import Baseline

ALL_AFTER_EVALUATIONS = "every iteration of the baseline followed an evaluation, and such are not like others: evaluate less often"


class Coordinator:
    """Runs the course of a job. Say errors once; whatever goes wrong ends in maximum clocks, never in a crash."""

    def __init__(
        self, options: EnergyOptions, facts: JobFacts, planner: Planner, clocks_mhz: Sequence[int], say: Callable[[str], None]
    ) -> None:
        self.options = options
        self.facts = facts
        self.planner = planner
        self.clocks_mhz = tuple(clocks_mhz)
        self.say = say
        self.findings = Findings()
        self._evaluated = False  # since the last iteration
        self._control = Control(options.run_dir, say)
        self._seen_elsewhere = False  # that the live switch says so, at the last log interval
        self._held: Directive | None = None  # while the live switch keeps the job at maximum clocks; the course waits
        self._seen = 0  # iterations
        self._sizes = 1  # different numbers of microbatches so far
        self._course = self._run() if self._fits_given_plan else self._waiting()
        self._next = next(self._course)
        self._known_short = 0 < facts.any.iterations <= self.needed and self._planless
        if self._known_short:
            say(f"no plan will come into force: this run has {facts.any.iterations} iterations, {self._needs}")

    @property
    def directives(self) -> list[Directive]:
        """By rank, for the next iteration."""
        following = self._next if self._held is None else self._held
        return following if isinstance(following, list) else [following] * self.facts.world_size

    def advance(self, data: IterationData) -> None:
        """Take in a training iteration and decide about the next one."""
        if self._held is None:
            self._take_in(data)
        else:
            self._held = Directive("maximum")  # the iteration that has just ended gave the clocks back
        self.look_at_control(self._seen_elsewhere)

    def _take_in(self, data: IterationData) -> None:
        """The next step of the course.

        An iteration right after an evaluation is not like the others (:func:`~megatron_energy.records.iteration.job_time_s`), so it
        is no evidence for or against a plan.
        """
        self._seen += 1
        after_evaluation, self._evaluated = self._evaluated, False
        planned = self.findings.planned
        if after_evaluation:
            data = replace(data, after_evaluation=True)
            if planned is not None and self.directives[0].phase == "planned":
                self._next = [planned.directive(rank) for rank in range(self.facts.world_size)]
                return
        self._next = self._course.send(data)

    def interrupted(self) -> None:
        """An evaluation ran, at clocks of its own: the clock that the plan begins with has to be requested again."""
        self._evaluated = True
        if self._held is None:
            self._activate_again()

    def _activate_again(self) -> None:
        planned = self.findings.planned
        if planned is not None and self.directives[0].phase == "planned":
            self._next = [planned.activation(rank) for rank in range(self.facts.world_size)]

    def look_at_control(self, seen: bool = False, fell_back: bool = False) -> None:
        """The live switch: all ranks go to maximum clocks, or back, in the next iteration.

        Args:
            seen: somebody else has seen it say so.
            fell_back: a rank has gone to maximum clocks alone: the clock that the plan begins with has to be requested again.
        """
        self._seen_elsewhere = seen
        dropped = (self._control.dropped() or seen) and self.options.policy not in (*UNPLANNED, "dry-run")
        if dropped and self._held is None:
            self._held = constant_clock("maximum", 0)
            self.say(f"dropped to maximum clocks by {self._control.path}; to go on: megatron-energy resume {self.options.run_dir}")
        elif not dropped and self._held is not None:
            self._held = None
            self._activate_again()
            off = self.findings.off_reason
            self.say("resumed" if off is None else f"resumed, but at maximum clocks: {off}")
        elif fell_back and not dropped:
            self._activate_again()

    @property
    def needed(self) -> int:
        """Iterations before the first one under a plan; nothing is swept where a plan or a profile is given."""
        given = (self.options.plan or self.options.profile or self.findings.profile) is not None
        return 1 + self.options.baseline_iterations + (0 if given else ITERATIONS_PER_CLOCK * self._sweep_clocks)

    @property
    def _sweep_clocks(self) -> int:
        baseline = self.findings.baseline
        held = held_clocks_mhz(baseline[-1].records) if baseline else ()
        return len(sweep_clocks_mhz(self.clocks_mhz, self.options.sweep_clocks, held))

    @property
    def _needs(self) -> str:
        swept = self.needed - 1 - self.options.baseline_iterations
        sweep = f" + {swept} of the sweep" if swept else ""
        return f"a plan needs {self.needed} before it (1 + {self.options.baseline_iterations} of the baseline{sweep})"

    @property
    def _planless(self) -> bool:
        """Whether there is no plan yet, but would be one later."""
        due = self.options.policy not in UNPLANNED and self._fits_given_plan
        return due and self.findings.planned is None and self.findings.off_reason is None

    def finish(self) -> None:
        """The run is over: say what it was too short for. Nothing is said of a run in which no iteration ended."""
        if self._seen and self._planless and not self._known_short:
            more = max(self.needed + 1 - self._seen, 1)
            which = f" for {self.facts.any.microbatches} microbatches" if self._sizes > 1 else ""
            self.say(f"no plan{which} came into force: {more} more iteration{'s' if more > 1 else ''} needed, {self._needs}")

    def drop(self, reason: str, *, comparable: bool = True) -> bool:
        """Give the clocks back for the rest of the run; said once, whatever else goes wrong later. Whether this was that once.

        Args:
            reason: for the user.
            comparable: False where iterations are no longer what the baseline measured.
        """
        self.findings.comparable = self.findings.comparable and comparable
        if self.findings.off_reason is not None:
            return False
        if self.options.policy in UNPLANNED:  # nothing was requested, so there is nothing to give back
            self.findings.off_reason = reason
            self.say(f"from here on, iterations are not compared with the baseline: {reason}")
            return True
        self._course.close()
        self._course = self._maximum(reason)
        self._next = next(self._course)
        return True

    def resized(self, microbatches: int) -> bool:
        """The iterations from now on have so many microbatches (a batch size ramp-up), so they need a baseline and a plan of their own.

        What was learned of single operations holds for any number of them. A given plan is for one number: the clocks stay at maximum
        until it comes (again).

        Returns:
            Whether the course begins anew.
        """
        before = self.facts.any.microbatches
        if microbatches == before:  # it was another one for a while, and ranks went to maximum clocks
            self._activate_again()
            return False
        if self.options.policy in UNPLANNED:
            self.drop(f"microbatches changed from {before} to {microbatches} during the run", comparable=False)
        if self.findings.off_reason is not None:
            self.findings.comparable = False
            return False
        told = self.findings.planned is not None or self._sizes == 1
        self.facts = self.planner.facts = self.facts.with_microbatches(microbatches)
        self._sizes, self._seen = self._sizes + 1, 0
        self.findings.start_over()
        self._course.close()
        if told and self._fits_given_plan:
            self.say(f"microbatches changed from {before} to {microbatches}: a new baseline at maximum clocks, then a plan for these")
        self._course = self._run() if self._fits_given_plan else self._waiting()
        next(self._course)
        self._next = constant_clock("baseline" if self._fits_given_plan else "maximum", 0)
        return True

    @property
    def _fits_given_plan(self) -> bool:
        """Whether a given plan is for the number of microbatches that the iterations have now; where none is given, one is made."""
        return self.options.plan is None or self.planner.microbatches_of_given_plan() == self.facts.any.microbatches

    def _waiting(self) -> Course:
        needed, now = self.planner.microbatches_of_given_plan(), self.facts.any.microbatches
        self.say(f"maximum clocks while iterations have {now} microbatches: the plan {self.options.plan} is for {needed}")
        yield from self._forever(Directive("maximum"))

    def _run(self) -> Course:
        yield from self._collect("baseline", 1)  # the first iteration of a run is longer: caches, buffers, autotuning
        window = yield from self._collect("baseline", self.options.baseline_iterations)
        self.findings.baseline = [i for i in window if not i.after_evaluation]
        if self.options.policy in UNPLANNED:
            yield from self._forever(Directive("measure"))
        try:
            if not self.findings.baseline:
                raise LearningError(ALL_AFTER_EVALUATIONS)
            planned = self._numbered((yield from self._plan()))
        except (LearningError, ScheduleMismatch, UserError) as error:
            yield from self._maximum(str(error))
            return
        self.findings.planned = planned
        if self.options.plan is not None:
            self.options = replace(self.options, slowdown=planned.plan.slowdown)  # what its maker allowed
        if self.options.policy == "dry-run":
            self.say("dry run: the plan is computed and logged, no clock is requested for it")
            yield constant_clock("measure", 0)  # the sweep's last clock is given back
            yield from self._forever(Directive("measure"))
        limits = Limits(self.options.slowdown, self.options.recheck)
        yield from Guarded(planned, self._safer, self.findings, limits, self.facts.world_size, self.say).course()

    def _plan(self) -> Generator[Directive | list[Directive], IterationData, PlannedRun]:
        last = self.findings.baseline[-1]
        schedule = self.planner.schedule([last.programs[rank] for rank in range(self.facts.world_size)])
        energy_j = self.findings.baseline_energy_j
        measured = Baseline(self.findings.baseline_time_s or math.nan, math.nan if energy_j is None else energy_j)
        given = self.planner.given_plan(schedule, measured)
        if given is not None:
            return given
        profile = self.planner.given_profile() or self.findings.profile
        if profile is None:
            sweep = {max(self.clocks_mhz): [i.records for i in self.findings.baseline]}
            for clock in sweep_clocks_mhz(self.clocks_mhz, self.options.sweep_clocks, held_clocks_mhz(last.records)):
                for _ in range(ITERATIONS_PER_CLOCK):
                    data = yield constant_clock("sweep", clock)
                    sweep.setdefault(clock, []).append(data.records)
            profile = learn_profile(sweep, self.facts.stage_of_rank, transfer_time_s(last.records), self.planner.provenance())
        self.findings.profile = self.planner.calibrated(schedule, profile, measured)
        return self.planner.plan(schedule, self.findings.profile)

    def _numbered(self, planned: PlannedRun) -> PlannedRun:
        """With a version of its own: every number of microbatches has a plan and possibly a safer one."""
        return planned if self._sizes == 1 else replace(planned, version=2 * self._sizes - 1)

    def _safer(self, planned: PlannedRun) -> PlannedRun | None:
        return self.planner.safer(planned, self.findings.profile)

    def _collect(self, phase: Phase, count: int) -> Generator[Directive, IterationData, list[IterationData]]:
        seen = []
        for _ in range(count):
            seen.append((yield Directive(phase)))
        return seen

    def _forever(self, directive: Directive | list[Directive]) -> Course:
        while True:
            yield directive

    def _maximum(self, reason: str) -> Course:
        self.findings.off_reason = reason
        self.say(f"maximum clocks from here on: {reason}")
        yield constant_clock("maximum", 0)
        yield from self._forever(Directive("maximum"))
