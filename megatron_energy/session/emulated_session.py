"""One rank's part in a run on emulated GPUs."""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from megatron_energy.emulation.settle import SettleError
from megatron_energy.errors import UserError
from megatron_energy.records.steps import Program
from megatron_energy.records.summary import Phase
from megatron_energy.session.coordinator import Coordinator
from megatron_energy.session.defects import Fence, Step, end_all, no_exchange, noted
from megatron_energy.session.directive import Directive, TransitionPoint, constant_clock, evaluation_requests
from megatron_energy.session.emulated import Advance, EmulatedDevice, create_node, gpus_per_node, on_emulated_nodes, settler
from megatron_energy.session.exchange import Exchange, intact
from megatron_energy.session.facts import JobFacts, RankFacts
from megatron_energy.session.findings import IterationData
from megatron_energy.session.options import EnergyOptions
from megatron_energy.session.planned import PlannedRun
from megatron_energy.session.planner import Planner
from megatron_energy.session.reporting import Reporter, show
from megatron_energy.session.signals import signals_of
from megatron_energy.session.summaries import Standing, summarise

Told = TypeVar("Told", str, int)


@dataclass(frozen=True)
class Recorded:
    """What one rank hands in at the end of an iteration.

    Attributes:
        program: what it did.
        broken: why the program cannot be trusted; None: it can.
        stale: why the plan no longer fits what runs; None: it does.
        microbatches: of this iteration and those to come, where there were others before; None: nothing has changed.
    """

    program: Program
    broken: str | None = None
    stale: str | None = None
    microbatches: int | None = None


class Home:
    """What only the home rank has: the simulator, the coordinator and the reports."""

    def __init__(self, options: EnergyOptions, facts: JobFacts, clocks_mhz: tuple[int, ...], say: Callable[[str], None]) -> None:
        self.facts = facts
        self.settler = settler(options, facts)
        gpu = self.settler.workload.gpu
        lead_s = gpu.request_lead_s(gpus_per_node(options, facts)) if options.emulated_latency == "catalog" else 0.0
        planner = Planner(options, facts, clocks_mhz, lead_s, gpu.name, say)
        planner.check()
        self.coordinator = Coordinator(options, facts, planner, clocks_mhz, say)
        title = f"{options.emulated_model or 'model in training'} on {facts.world_size} emulated {gpu.name}"
        self.reporter = Reporter(options, facts, self.coordinator.findings, title, say, gpu.counter_update_s)
        self.advances = self._reached()
        self._written: PlannedRun | None = None
        self._stuck = False
        self._records = Fence(self._unrecorded, self.reporter.directory)

    def settle(self, recorded: Sequence[Recorded], iteration: int, evaluation: bool) -> IterationData | None:
        """Settle one iteration and decide about the next; what cannot be trusted ends the plan, not the training.

        Returns:
            The iteration; None where the records do not tell what happened. Emulated time then stands still, as any figure would
            be made up.
        """
        broken = _first(f"rank {rank}: {r.broken}" for rank, r in enumerate(recorded) if r.broken is not None)
        stale = _first(r.stale for r in recorded if r.stale is not None)
        resized = _first(r.microbatches for r in recorded if r.microbatches is not None)
        data = None if broken else self._settled([r.program for r in recorded], iteration, evaluation)
        if stale is not None:
            self.coordinator.drop(stale, comparable=False)
        if resized is not None and self.coordinator.resized(resized):
            self.reporter.start_over(resized)
        if broken is not None:
            self.coordinator.drop(f"{broken} (such iterations have no figures)")
        if evaluation:
            self.coordinator.interrupted()
        elif data is not None and not (broken or stale or resized):
            self.coordinator.advance(data)
        planned = self.coordinator.findings.planned
        if planned is not None and planned is not self._written:  # the guard may put another one in force
            self._written = planned
            self.reporter.plan_made()
        return data

    def _settled(self, programs: list[Program], iteration: int, evaluation: bool) -> IterationData | None:
        if self._stuck:
            return None
        try:
            records = self.settler.settle(programs, iteration, evaluation)
            data = IterationData(records, programs, signals=signals_of(records))
        except SettleError as error:  # the simulator stopped half-way and is of no use from here on
            self._stuck = True
            self.coordinator.drop(f"{error} (no figures from here on)")
            return None
        self.advances = self._reached()
        return data

    def failed(self, error: Exception) -> None:
        """Something of ours went wrong: clocks are given back, and RUN_DIR/error.txt tells us where it happened."""
        self.coordinator.drop(noted(error, self.reporter.directory))

    def report(self, write: Callable[[], None]) -> None:
        """Write something down; a defect of ours ends the records and the plan, not the training."""
        self._records.run(write)

    def _unrecorded(self, why: str) -> None:
        if not self.coordinator.drop(f"{why}; nothing more is recorded"):
            self.coordinator.say(f"nothing more is recorded: {why}")

    def _reached(self) -> list[Advance]:
        """By rank, how far its GPU got."""
        return [Advance.of(gpu, self.settler.workload.gpu.sm_clock_max_mhz) for gpu in self.settler.gpus]


def _first(reasons: Iterable[Told]) -> Told | None:
    return next(iter(reasons), None)


class EmulatedSession:
    """Gathers what all ranks did, settles it on the home rank, and hands out what comes next.

    Args:
        options: what the user asked for.
        facts: this rank's facts.
        exchange: to the other ranks.
        say: prints one line for the user, on the home rank.
    """

    def __init__(self, options: EnergyOptions, facts: RankFacts, exchange: Exchange, say: Callable[[str], None]) -> None:
        self._exchange, self._rank, self._say = exchange, facts.rank, say
        gathered = exchange.gather(facts)
        job = on_emulated_nodes(gathered, options.emulated_gpus_per_node) if gathered is not None else None
        job = exchange.broadcast(job)
        mine = job.ranks[facts.rank]
        if mine.local_rank == 0:
            create_node(options, mine, exchange.world_size)
        self._uuids = exchange.gather(None)  # nobody opens a node before it is made
        self._device = EmulatedDevice(options, mine, exchange.world_size)
        self._home = self._at_home(options, job, say)
        self._uuids = exchange.gather(self._device.gpu.uuid)
        self._talking = Fence(self._alone, describe=no_exchange)
        self._directive: Directive = Directive("baseline")
        self._broken: str | None = None
        self._stale: str | None = None
        self._microbatches: int | None = None
        self._evaluated = False  # right before the running iteration

    def _at_home(self, options: EnergyOptions, job: JobFacts, say: Callable[[str], None]) -> Home | None:
        """Set up the home rank; a mistake of the user's that shows only there is raised on every rank, so that all end."""
        home, mistake = None, None
        if self._exchange.rank == self._exchange.home:
            try:
                home = Home(options, job, self._device.gpu.supported_sm_clocks_mhz(), say)
            except UserError as error:
                mistake = str(error)
        told = self._exchange.broadcast(mistake)
        if told is not None:
            raise UserError(told)
        return home

    @property
    def requests(self) -> dict[TransitionPoint, Any]:
        """This rank's clock requests in the next training iteration."""
        return self._directive.requests

    @property
    def evaluation_requests(self) -> dict[TransitionPoint, Any]:
        """This rank's clock requests in an evaluation before the next training iteration."""
        return evaluation_requests(self._directive)

    def broken(self, reason: str) -> None:
        """The running iteration cannot be recorded."""
        self._broken = self._broken or reason

    def stale(self, reason: str) -> None:
        """What runs from now on is not what the plan was made for, nor what the baseline measured."""
        self._stale = self._stale or reason
        self._to_maximum()

    def resized(self, microbatches: int) -> None:
        """Iterations have another number of microbatches from now on."""
        self._microbatches = microbatches
        self._to_maximum()

    def _to_maximum(self) -> None:
        """At once: what was handed out is for another iteration than the one that begins. All ranks see it in the same one."""
        if self._directive.phase in ("sweep", "planned"):
            self._directive = constant_clock("maximum", 0)

    def iteration(self, number: int, program: Program, evaluation: bool) -> None:
        """An iteration has ended on this rank; returns when all ranks know what comes next."""
        self._talking.run(lambda: self._iteration(number, program, evaluation))

    def _alone(self, why: str) -> None:
        """The others will not come any more: no clock is asked for from here on, and nothing is settled."""
        self._directive = Directive("maximum")
        if self._home is not None:
            self._home.coordinator.drop(f"{why}; nothing more is recorded")

    def _iteration(self, number: int, program: Program, evaluation: bool) -> None:
        gathered = self._exchange.gather(Recorded(program, self._broken, self._stale, self._microbatches))
        self._broken = self._stale = self._microbatches = None
        outgoing, data, before, planned = None, None, self._directive, None
        if self._home is not None and gathered is not None:
            planned = self._home.coordinator.findings.planned  # known before it comes into force, and another one may follow
            data = self._settled(self._home, gathered, number, evaluation)
            outgoing = list(zip(self._home.advances, self._home.coordinator.directives, strict=True))
        advance, self._directive = self._exchange.scatter(outgoing)
        energies_j = self._exchange.gather(self._advanced(advance))
        if self._home is not None and data is not None and energies_j is not None:
            home, settled, joules = self._home, data, energies_j
            standing = Standing(home.coordinator.findings.comparable and not self._evaluated, planned)
            home.report(lambda: self._report(home, number, before, settled, joules, standing))
        self._evaluated = evaluation

    def _advanced(self, advance: Advance) -> float:
        """Joules that this rank's GPU has used up. Where it fails, the others are told in the next iteration: they wait for this one."""
        try:
            return self._device.advance(advance)
        except Exception as error:  # noqa: BLE001 -- see above
            self.broken(noted(error))
            return math.nan

    @staticmethod
    def _settled(home: Home, gathered: Sequence[Recorded], number: int, evaluation: bool) -> IterationData | None:
        """Settle and decide; a defect of ours ends the plan, not the training: the other ranks wait for an answer."""
        try:
            return home.settle([intact(recorded) for recorded in gathered], number, evaluation)
        except Exception as error:  # noqa: BLE001 -- the one place where anything of ours can fail while all ranks wait
            with suppress(Exception):  # such as a standard output that nobody reads any more
                home.failed(error)
            return None

    def _report(self, home: Home, number: int, before: Directive, data: IterationData, energies_j: list[float], standing: Standing) -> None:
        for record, energy_j in zip(data.records, energies_j, strict=True):
            record.energy_j = energy_j  # as NVML told it: baseline, plan and sums are all counted in the same steps of the counter
        evaluation, findings = data.records[0].evaluation, home.coordinator.findings
        phase: Phase = "evaluation" if evaluation else before.phase
        if phase == "planned" and not findings.comparable:  # the plan's clocks, but not what it was made for
            phase = "maximum"
        summary = summarise(number, phase, data.records, energies_j, self._uuids or [], home.facts, findings, standing)
        home.reporter.add(summary, data)

    def log(self, iteration: int, writer: Any) -> None:
        """Megatron's log interval."""
        if self._home is not None:
            home = self._home
            home.report(lambda: home.reporter.write(iteration, writer))

    def close(self) -> None:
        """The end of the run: clocks are given back, and the home rank reports."""
        steps: list[Step] = [(f"rank {self._rank}: the end of its emulated GPU", self._device.close)]
        home = self._home
        if home is not None:
            steps += [("the end of the run", home.coordinator.finish), ("no report", lambda: show(home.reporter.finish()))]
        end_all(steps, self._say, home.reporter.directory if home is not None else None)
