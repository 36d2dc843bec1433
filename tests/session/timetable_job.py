"""A job whose ranks follow timetables and talk at log intervals only: its iterations are settled in virtual time."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from megatron_energy.gpus.counts import Counts
from megatron_energy.records.iteration import RankIteration
from megatron_energy.records.steps import ClockRequest
from megatron_energy.session.actuation import Hold, Way
from megatron_energy.session.conductor import Conductor
from megatron_energy.session.controlled_session import ControlledSession
from megatron_energy.session.directive import ITERATION_BEGIN, Directive, TransitionPoint
from megatron_energy.session.fallback import Fallback, OwnGuard
from megatron_energy.session.instruments import Ended
from megatron_energy.session.marks import TimedIteration
from megatron_energy.session.options import EnergyOptions
from megatron_energy.session.reporting import Reporter
from megatron_energy.session.timetable import Timetable, opening
from tests.session.simulated import SimulatedRun, with_requests
from tests.session.small_job import FACTS, OPTIONS
from tests.session.threads import Meeting, ThreadExchange, on_all_ranks

LOG_INTERVAL = 4

BASELINE = ["baseline"] * 2
PLANNED_FROM = 5
"""With a given plan: the end of the baseline is told at iteration 4."""


class FakeController:
    """Counts; what requests it gets is what the hooks would hand to it."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.maximum = 0
        self.asked: list[int] = []
        self.raises_in_s: list[float] = []
        self.closed = False
        self.caught_ups = 0

    def request(self, clock_mhz: int, delay_s: float, raise_in_s: float) -> None:
        self.asked.append(clock_mhz)
        self.raises_in_s.append(raise_in_s)

    def caught_up(self) -> None:
        self.caught_ups += 1

    def to_maximum(self) -> None:
        self.maximum += 1

    def close(self) -> None:
        self.closed = True


class FakeSwitch:
    """The live switch of the only node."""

    dropped = False

    def close(self) -> None:
        pass


class SettledInstruments:
    """Records are what the simulation settled."""

    failed = ""

    def __init__(self, settled: dict[int, list[RankIteration]], rank: int) -> None:
        self._settled, self._rank = settled, rank
        self.defect: Exception | None = None
        self.foreign = ""
        self.stretch = 1.0  # of what this rank sees of its iterations' times
        self.learns = True  # from the iteration that comes
        self._now_s = 0.0

    def learning(self, learning: bool) -> None:
        self.learns = learning

    def mark(self, point: TransitionPoint) -> None:
        pass

    def end(self, number: int, evaluation: bool) -> Ended:
        begin_s = self._now_s
        self._now_s += self.stretch * self._settled[number][self._rank].time_s
        return Ended(number, evaluation, [], self._now_s, TimedIteration(begin_s, self._now_s, []))

    def records(self, ended: list[Ended]) -> list[RankIteration]:
        if self.defect is not None:
            raise self.defect
        return [self._settled[iteration.number][self._rank] for iteration in ended]

    def other_writer(self) -> str:
        return self.foreign

    def close(self) -> None:
        pass


class Job:
    """A job of two stages whose ranks are :class:`ControlledSession` objects. ``capped`` False: the power cap does not show."""

    def __init__(self, folder: Path, options: EnergyOptions = OPTIONS, settled_at_log: bool = True, capped: bool = True) -> None:
        self.capped = capped
        self.options = replace(options, directory=str(folder))
        self.run = SimulatedRun(self.options, FACTS, FACTS.schedule("overlap"))  # its planner, its settler and its programs are used
        self.said = self.run.said
        self.meeting = Meeting(FACTS.world_size)
        self.settled: dict[int, list[RankIteration]] = {}
        self.conductor = self._conductor()
        self.controllers = [FakeController() for _ in FACTS.ranks]
        self.instruments = [SettledInstruments(self.settled, rank) for rank in range(FACTS.world_size)]
        self.switch = FakeSwitch()
        self.sessions = [self._session(rank, settled_at_log) for rank in range(FACTS.world_size)]
        self.phases: list[str] = []
        self.number = 0
        self.released: list[int] = []

    def _conductor(self) -> Conductor:
        coordinator = self.run.coordinator
        reporter = Reporter(self.options, self.run.facts, coordinator.findings, "a job", self.said.append)
        timetables = [Timetable(self._opening()) for _ in FACTS.ranks]
        uuids = [f"GPU-{rank}" for rank in range(FACTS.world_size)]
        return Conductor(coordinator, timetables, self.run.facts, uuids, reporter)

    def _opening(self) -> list[tuple[int, Directive]]:
        return opening(self.options, self.run.coordinator.clocks_mhz)

    def _session(self, rank: int, settled_at_log: bool) -> ControlledSession:
        exchange = ThreadExchange(self.meeting, rank)
        hold = Hold(Way("nvml"), close=lambda: self.released.append(rank))
        home = self.conductor if rank == exchange.home else None
        parts: Any = (hold, self.controllers[rank], self.instruments[rank])
        fallback = Fallback(self.switch, OwnGuard(0.0))
        return ControlledSession(exchange, *parts, Timetable(self._opening()), home, fallback, settled_at_log)

    def iterate(self, count: int) -> None:
        """So many iterations, with a log interval after every :data:`LOG_INTERVAL`-th."""
        for _ in range(count):
            self.number += 1
            self.phases.append(self.sessions[0]._timetable.at(self.number).phase)
            directives = [Directive("measure", session.requests) for session in self.sessions]
            programs = [with_requests(p, d) for p, d in zip(self.run.programs, directives, strict=True)]
            settled = self.run.settler.settle(programs, self.number)
            self.settled[self.number] = settled if self.capped else [_obeyed(r, d) for r, d in zip(settled, directives, strict=True)]
            for session, program in zip(self.sessions, self.run.programs, strict=True):
                session.iteration(self.number, program, False)
            if self.number % LOG_INTERVAL == 0:
                self.log()

    def log(self) -> None:
        on_all_ranks([lambda session=session: session.log(self.number, None) for session in self.sessions])


def _obeyed(record: RankIteration, directive: Directive) -> RankIteration:
    """The record of a GPU that runs at whatever clock the iteration begins with."""
    asked = directive.requests.get(ITERATION_BEGIN, (ClockRequest(0),))[0].clock_mhz or 1410
    return replace(record, spans=[replace(span, clock_mhz=asked, throttled=False) for span in record.spans])
