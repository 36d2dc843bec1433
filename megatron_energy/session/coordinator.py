"""The course of a run, decided on the home rank: baseline -> sweep -> plan -> run under the plan.

The course is a generator: it yields the directives of the next iteration and receives what that iteration did. That keeps the
order of the phases readable from top to bottom.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from megatron_energy.errors import UserError
from megatron_energy.pipeline.match import ScheduleMismatch
from megatron_energy.profiles.profile import Profile
from megatron_energy.records.iteration import RankIteration
from megatron_energy.records.steps import Program
from megatron_energy.records.summary import Phase
from megatron_energy.session.directive import Directive, constant_clock
from megatron_energy.session.facts import JobFacts
from megatron_energy.session.learning import LearningError, learn_profile, transfer_time_s
from megatron_energy.session.options import EnergyOptions
from megatron_energy.session.planner import Planner, PlannedRun

ITERATIONS_PER_CLOCK = 2
"""Of the sweep: see :data:`megatron_energy.session.learning.Series`."""


@dataclass(frozen=True)
class IterationData:
    """One training iteration of all ranks, by rank."""

    records: list[RankIteration]
    programs: list[Program]

    @property
    def time_s(self) -> float:
        """From the first rank's begin to the last rank's end, in seconds."""
        return max(r.end_s for r in self.records) - max(r.start_s for r in self.records)

    @property
    def energy_j(self) -> float:
        """Joules of all GPUs."""
        return sum(r.energy_j for r in self.records)


Course = Generator[Directive | list[Directive], IterationData, None]


@dataclass
class Findings:
    """What the run has found out so far; written by the course, read by reports."""

    baseline: list[IterationData] = field(default_factory=list)
    profile: Profile | None = None
    planned: PlannedRun | None = None
    off_reason: str | None = None  # why clocks stay at maximum, where they do

    @property
    def baseline_time_s(self) -> float | None:
        """Mean iteration time of the baseline window."""
        return sum(i.time_s for i in self.baseline) / len(self.baseline) if self.baseline else None

    @property
    def baseline_energy_j(self) -> float | None:
        """Mean joules of all GPUs per baseline iteration."""
        return sum(i.energy_j for i in self.baseline) / len(self.baseline) if self.baseline else None


class Coordinator:
    """Runs the course of a job. Say errors once; whatever goes wrong ends in maximum clocks, never in a crash."""

    def __init__(self, options: EnergyOptions, facts: JobFacts, planner: Planner, clocks_mhz: Sequence[int], say: Callable[[str], None]) -> None:
        self.options = options
        self.facts = facts
        self.planner = planner
        self.clocks_mhz = tuple(clocks_mhz)
        self.say = say
        self.findings = Findings()
        self._course = self._run()
        self._next = next(self._course)

    @property
    def directives(self) -> list[Directive]:
        """By rank, for the next iteration."""
        return self._next if isinstance(self._next, list) else [self._next] * self.facts.world_size

    def advance(self, data: IterationData) -> None:
        """Take in a training iteration and decide about the next one."""
        self._next = self._course.send(data)

    def drop(self, reason: str) -> None:
        """Give the clocks back for the rest of the run."""
        self._course.close()
        self._course = self._maximum(reason)
        self._next = next(self._course)

    def _run(self) -> Course:
        yield from self._collect("baseline", 1)  # the first iteration of a run is longer: caches, buffers, autotuning
        self.findings.baseline = yield from self._collect("baseline", self.options.baseline_iterations)
        if self.options.policy in ("measure", "maximum"):
            yield from self._forever(Directive("measure"))
        try:
            planned = yield from self._plan()
        except (LearningError, ScheduleMismatch, UserError) as error:
            yield from self._maximum(str(error))
            return
        self.findings.planned = planned
        if self.options.policy == "dry-run":
            self.say("dry run: the plan is computed and logged, no clock is requested")
            yield from self._forever(Directive("measure"))
        yield [planned.activation(rank) for rank in range(self.facts.world_size)]
        yield from self._forever([planned.directive(rank) for rank in range(self.facts.world_size)])

    def _plan(self) -> Generator[Directive | list[Directive], IterationData, PlannedRun]:
        last = self.findings.baseline[-1]
        schedule = self.planner.schedule([last.programs[rank] for rank in range(self.facts.world_size)])
        given = self.planner.given_plan(schedule)
        if given is not None:
            return given
        profile = self.planner.given_profile()
        if profile is None:
            sweep: dict[int, list[list[RankIteration]]] = {}
            for clock in self.sweep_clocks_mhz():
                for _ in range(ITERATIONS_PER_CLOCK):
                    data = yield constant_clock("sweep", clock)
                    sweep.setdefault(clock, []).append(data.records)
            profile = learn_profile(dict(sweep), self.facts.stage_of_rank, transfer_time_s(last.records), self.planner.provenance())
        self.findings.profile = profile
        return self.planner.plan(schedule, profile)

    def sweep_clocks_mhz(self) -> list[int]:
        """Clocks to try, highest first: evenly spaced supported ones down to 60% of the maximum.

        Below about 900 of 1410 MHz an A100 no longer saves (Kareus, arXiv 2601.17654): slower clocks only cost time.
        """
        clocks = sorted((c for c in self.clocks_mhz if c >= 0.6 * max(self.clocks_mhz)), reverse=True)
        count = min(self.options.sweep_clocks, len(clocks))
        return [clocks[round(i * (len(clocks) - 1) / (count - 1))] for i in range(count)] if count > 1 else clocks[:1]

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
