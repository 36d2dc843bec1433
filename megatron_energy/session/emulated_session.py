"""One rank's part in a run on emulated GPUs."""

from collections.abc import Callable
from typing import Any

from megatron_energy.errors import UserError
from megatron_energy.observe.report_table import print_report
from megatron_energy.records.steps import Program
from megatron_energy.session.coordinator import Coordinator, IterationData
from megatron_energy.session.directive import Directive, TransitionPoint
from megatron_energy.session.emulated import Advance, EmulatedDevice, create_node, gpus_per_node, on_emulated_nodes, settler
from megatron_energy.session.exchange import Exchange
from megatron_energy.session.facts import JobFacts, RankFacts
from megatron_energy.session.options import EnergyOptions
from megatron_energy.session.planner import Planner
from megatron_energy.session.reporting import Reporter
from megatron_energy.session.summaries import summarise


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
        self.reporter = Reporter(options, facts, self.coordinator.findings, title, say)
        self._plan_written = False

    def settle(self, programs: list[Program], broken: list[str | None], iteration: int, evaluation: bool) -> IterationData:
        """Settle one iteration and decide about the next; programs that cannot be trusted end the plan, not the training."""
        data = IterationData(self.settler.settle(programs, iteration, evaluation), programs)
        reason = next((f"rank {rank}: {why}" for rank, why in enumerate(broken) if why is not None), None)
        if evaluation:
            return data
        if reason is not None and self.coordinator.findings.off_reason is None:
            self.coordinator.drop(reason)
        else:
            self.coordinator.advance(data)
        if not self._plan_written and self.coordinator.findings.planned is not None:
            self._plan_written = True
            self.reporter.plan_made()
        return data

    def advances(self) -> list[Advance]:
        """By rank, how far its GPU got."""
        return [Advance(g.time_s, g.reading_mj, g.clock_mhz, g.power_w) for g in self.settler.gpus]


class EmulatedSession:
    """Gathers what all ranks did, settles it on the home rank, and hands out what comes next.

    Args:
        options: what the user asked for.
        facts: this rank's facts.
        exchange: to the other ranks.
        say: prints one line for the user, on the home rank.
    """

    def __init__(self, options: EnergyOptions, facts: RankFacts, exchange: Exchange, say: Callable[[str], None]) -> None:
        self._exchange = exchange
        gathered = exchange.gather(facts)
        job = on_emulated_nodes(gathered, options.emulated_gpus_per_node) if gathered is not None else None
        job = exchange.scatter([job] * exchange.world_size if job is not None else None)
        mine = job.ranks[facts.rank]
        if mine.local_rank == 0:
            create_node(options, mine, exchange.world_size)
        self._uuids = exchange.gather(None)  # nobody opens a node before it is made
        self._device = EmulatedDevice(options, mine, exchange.world_size)
        self._home = self._at_home(options, job, say)
        self._uuids = exchange.gather(self._device.gpu.uuid)
        self._directive: Directive = Directive("baseline")
        self._broken: str | None = None
        self._evaluations = 0

    def _at_home(self, options: EnergyOptions, job: JobFacts, say: Callable[[str], None]) -> Home | None:
        """Set up the home rank; a mistake of the user's that shows only there is raised on every rank, so that all end."""
        home, mistake = None, None
        if self._exchange.rank == self._exchange.home:
            try:
                home = Home(options, job, self._device.gpu.supported_sm_clocks_mhz(), say)
            except UserError as error:
                mistake = str(error)
        told = self._exchange.scatter([mistake] * self._exchange.world_size if self._exchange.rank == self._exchange.home else None)
        if told is not None:
            raise UserError(told)
        return home

    @property
    def requests(self) -> dict[TransitionPoint, Any]:
        """This rank's clock requests in the next training iteration."""
        return self._directive.requests

    def broken(self, reason: str) -> None:
        """The running iteration cannot be recorded."""
        self._broken = reason

    def iteration(self, number: int, program: Program, evaluation: bool) -> None:
        """An iteration has ended on this rank; returns when all ranks know what comes next."""
        gathered = self._exchange.gather((program, self._broken))
        self._broken = None
        outgoing, data, before = None, None, self._directive
        if self._home is not None and gathered is not None:
            programs, broken = [g[0] for g in gathered], [g[1] for g in gathered]
            data = self._home.settle(programs, broken, number, evaluation)
            outgoing = list(zip(self._home.advances(), self._home.coordinator.directives, strict=True))
        advance, self._directive = self._exchange.scatter(outgoing)
        energies_j = self._exchange.gather(self._device.advance(advance))
        if self._home is not None and data is not None and energies_j is not None:
            phase = "evaluation" if evaluation else before.phase
            findings = self._home.coordinator.findings
            version = 0 if evaluation else before.plan_version
            summary = summarise(number, phase, data.records, energies_j, self._uuids or [], self._home.facts, findings, version)
            self._home.reporter.add(summary, data)

    def log(self, iteration: int, writer: Any) -> None:
        """Megatron's log interval."""
        if self._home is not None:
            self._home.reporter.write(iteration, writer)

    def close(self) -> None:
        """The end of the run: clocks are given back, and the home rank reports."""
        self._device.close()
        if self._home is not None:
            report = self._home.reporter.finish()
            if report is not None:
                print_report(report)
