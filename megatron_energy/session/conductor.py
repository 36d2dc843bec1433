"""The home rank of a controlled run: takes in what all ranks did since the last log interval, and tells them what comes next."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from megatron_energy.records.iteration import RankIteration
from megatron_energy.records.steps import Program
from megatron_energy.records.summary import Phase
from megatron_energy.session.background import Background
from megatron_energy.session.coordinator import Coordinator
from megatron_energy.session.defects import noted
from megatron_energy.session.directive import Directive, constant_clock
from megatron_energy.session.facts import JobFacts
from megatron_energy.session.fallback import DROPPED
from megatron_energy.session.findings import IterationData
from megatron_energy.session.options import UNPLANNED
from megatron_energy.session.planned import PlannedRun
from megatron_energy.session.reporting import Reporter
from megatron_energy.session.signals import signals_of
from megatron_energy.session.summaries import Standing, summarise
from megatron_energy.session.sweep import held_clocks_mhz, sweep_clocks_mhz
from megatron_energy.session.timetable import Entry, Timetable, baseline_window, rest_of_sweep, same_run

PATIENCE_S = 0.1
"""How long a log interval waits for the coordinator at most: decisions take microseconds, but a plan takes seconds."""


@dataclass(frozen=True)
class Handed:
    """One iteration of one rank.

    Attributes:
        serial: number of it among all of the rank's iterations, evaluations too.
        record: what its GPU did.
        iteration: number among the training iterations, from 1 on; of an evaluation, that of the training iteration before it.
        program: what the rank did; empty where nobody will ask.
        trusted: the rank followed its timetable, and the record tells what happened.
        other_size: it had another number of microbatches than the iterations that the timetable is for.
        disobeyed: times that its GPU was seen at another clock than asked for, without a reason.
    """

    serial: int
    record: RankIteration
    iteration: int
    program: Program = field(default_factory=list)
    trusted: bool = True
    other_size: bool = False
    disobeyed: int = 0


@dataclass(frozen=True)
class Batch:
    """What a rank hands in at a log interval.

    Attributes:
        entries: iterations since the last time, in order.
        broken: why iterations could not be recorded.
        stale: why the plan no longer fits what runs.
        stopped: why this rank alone runs at maximum clocks.
        microbatches: of its iterations from now on, where the timetable is for another number; told until that has been answered.
        other_writer: who else has set something of its GPU since the last time, in words; empty: nobody.
        fell_back: why it has been at maximum clocks until now, since some iteration; empty: it has followed its timetable.
        dropped: the live switch says so, as seen from its node.
    """

    entries: list[Handed] = field(default_factory=list)
    broken: str | None = None
    stale: str | None = None
    stopped: str | None = None
    microbatches: int | None = None
    other_writer: str = ""
    fell_back: str = ""
    dropped: bool = False


class Conductor:
    """Feeds the coordinator, reports, and changes the ranks' timetables.

    Args:
        coordinator: decides.
        timetables: by rank, as every rank has them.
        facts: the job.
        uuids: of the GPUs, by rank.
        reporter: writes things down.
    """

    def __init__(
        self, coordinator: Coordinator, timetables: Sequence[Timetable], facts: JobFacts, uuids: Sequence[str], reporter: Reporter
    ) -> None:
        self.coordinator, self.reporter = coordinator, reporter
        self._timetables, self._facts, self._uuids = timetables, facts, uuids
        self._waiting: list[deque[Handed]] = [deque() for _ in timetables]
        self._background = Background(self._failed)
        self._fed = 0
        self._stopped: set[int] = set()
        self._written: PlannedRun | None = None
        self._plans: dict[int, PlannedRun] = {}  # by version; of those that timetables name
        self._evaluated = False  # right before the next iteration that is reported
        self._resizing: int | None = None  # microbatches that the coordinator has been told of, until that is answered
        self.answered: int | None = None  # microbatches that the entries of the last :meth:`take` are for, where ranks had asked

    def take(self, batches: Sequence[Batch], next_iteration: int, patience_s: float = PATIENCE_S) -> list[list[Entry]] | None:
        """Take in what the ranks hand in.

        Args:
            batches: by rank.
            next_iteration: the first one that the ranks have not begun.
            patience_s: see :data:`PATIENCE_S`.

        Returns:
            By rank, entries of its timetable from ``next_iteration`` on; None where nothing changes.
        """
        for waiting, batch in zip(self._waiting, batches, strict=True):
            waiting.extend(batch.entries)
        rows = self._complete_rows()
        other_writer = next((f"rank {rank}: {batch.other_writer}" for rank, batch in enumerate(batches) if batch.other_writer), "")
        for row in rows:
            self._feed(row, other_writer)
        if any(batch.microbatches is not None for batch in batches):
            self._background.idle(patience_s)
            self._report_all(rows)  # while the findings are of their size
            rows = []
        self._hear(batches)
        fell_back = self._fell_back(batches)
        seen = any(batch.dropped for batch in batches)  # a network file system may show a file's change to the home rank last
        self._background.submit(partial(self.coordinator.look_at_control, seen, fell_back))  # whatever iterations have told
        idle = self._background.idle(patience_s)
        self._report_all(rows)
        planned = self.coordinator.findings.planned
        if idle and planned is not None and planned is not self._written:  # the guard may put another one in force
            self._written = self._plans[planned.version] = planned
            self.reporter.plan_made()
        if not idle:
            return None
        self.answered, self._resizing = self._resizing, None
        activate = fell_back and self.coordinator.directives[0].phase == "planned"
        return self._changed(next_iteration, even_if_same=self.answered is not None or activate)

    def _report_all(self, rows: Sequence[list[Handed]]) -> None:
        for row in rows:
            self._report(row)

    def _complete_rows(self) -> list[list[Handed]]:
        """The iterations that all ranks have handed in; those that a rank has lost are left out."""
        rows = []
        while all(self._waiting):
            serial = max(waiting[0].serial for waiting in self._waiting)
            for waiting in self._waiting:
                while waiting and waiting[0].serial < serial:
                    waiting.popleft()
            if all(waiting and waiting[0].serial == serial for waiting in self._waiting):
                rows.append([waiting.popleft() for waiting in self._waiting])
        return rows

    def write(self, step: int, writer: Any) -> None:
        """At the log interval, with Megatron's TensorBoard writer."""
        self.reporter.write(step, writer)

    def give_up(self, why: str) -> None:
        """Something of ours went wrong: no plan and no records from here on, whatever the coordinator is doing just now."""
        self._background.submit(lambda: self._dropped(why))

    def at_maximum(self, next_iteration: int) -> list[list[Entry]]:
        """By rank, entries of its timetable that give the clock back."""
        return [[(next_iteration, constant_clock("maximum", 0))] for _ in self._timetables]

    def _dropped(self, why: str) -> None:
        if not self.coordinator.drop(f"{why}; nothing more is recorded"):
            self.coordinator.say(f"nothing more is recorded: {why}")

    def _failed(self, error: Exception) -> None:
        """Say that clocks are given back; RUN_DIR/error.txt tells us where it happened."""
        self.coordinator.drop(noted(error, self.reporter.directory))

    def _feed(self, row: Sequence[Handed], other_writer: str) -> None:
        first = row[0]
        if first.record.evaluation:
            self._background.submit(self.coordinator.interrupted)
            return
        self._fed = first.iteration
        if not all(entry.trusted for entry in row):
            return
        data, ran = _data(row, other_writer), [timetable.at(first.iteration) for timetable in self._timetables]
        self._background.submit(lambda: self._advance(data, ran))

    def _advance(self, data: IterationData, ran: Sequence[Directive]) -> None:
        """An iteration that the coordinator did not ask for, such as one during planning, tells it nothing."""
        if all(map(same_run, ran, self.coordinator.directives)):
            self.coordinator.advance(data)

    def _hear(self, batches: Sequence[Batch]) -> None:
        """What ranks have to say beside their iterations."""
        for rank, batch in enumerate(batches):
            if batch.stopped is not None and rank not in self._stopped:
                self._stopped.add(rank)
                self.coordinator.say(f"rank {rank} alone runs at maximum clocks from here on: {batch.stopped}")
                self._background.submit(partial(self._no_plan_without, rank, batch.stopped))
        stale = next((batch.stale for batch in batches if batch.stale is not None), None)
        broken = next((f"rank {rank}: {batch.broken}" for rank, batch in enumerate(batches) if batch.broken is not None), None)
        resized = next((batch.microbatches for batch in batches if batch.microbatches is not None), None)
        if resized is not None and resized != self._resizing:
            self._resizing = resized
            self._background.submit(partial(self._resized, resized))
        if stale is not None:
            self._background.submit(lambda: self.coordinator.drop(stale, comparable=False))
        if broken is not None:
            self._background.submit(lambda: self.coordinator.drop(broken))

    def _fell_back(self, batches: Sequence[Batch]) -> bool:
        """Whether ranks have left the timetable by themselves since the last time, to be told where they go on."""
        reasons = [(rank, batch.fell_back) for rank, batch in enumerate(batches) if batch.fell_back]
        told = next(((rank, reason) for rank, reason in reasons if reason != DROPPED), None)
        if told is not None:
            self.coordinator.say(f"maximum clocks until here, without waiting for the log interval: {told[1]} (rank {told[0]})")
        return bool(reasons)

    def _resized(self, microbatches: int) -> None:
        if self.coordinator.resized(microbatches):
            self.reporter.start_over(microbatches)

    def _no_plan_without(self, rank: int, reason: str) -> None:
        """A rank that follows no sweep teaches nothing: where there is no plan so far, none is waited for."""
        if self.coordinator.findings.planned is None and self.coordinator.options.policy not in UNPLANNED:
            self.coordinator.drop(f"rank {rank} stopped before there was a plan: {reason}")

    def _report(self, row: Sequence[Handed]) -> None:
        directive, data = self._timetables[row[0].record.rank].at(row[0].iteration), _data(row)
        phase: Phase = "evaluation" if row[0].record.evaluation else directive.phase
        trusted = all(entry.trusted for entry in row)
        if phase == "planned" and not trusted:
            phase = "maximum"
        number, findings = data.records[0].iteration, self.coordinator.findings
        # From the first iteration of other sizes on, none is trusted.
        of_same_sizes = (findings.comparable or trusted) and not any(entry.other_size for entry in row)
        standing = Standing(of_same_sizes and not self._evaluated, self._plans.get(directive.plan_version))
        self._evaluated = phase == "evaluation"
        energies_j = [record.energy_j for record in data.records]
        self.reporter.add(summarise(number, phase, data.records, energies_j, self._uuids, self._facts, findings, standing), data)

    def _changed(self, next_iteration: int, even_if_same: bool = False) -> list[list[Entry]] | None:
        wanted = self.coordinator.directives
        after_fed = [timetable.at(self._fed + 1) for timetable in self._timetables]
        if not even_if_same and all(map(same_run, after_fed, wanted)):
            return None
        changes = [self._entries(next_iteration, rank, directive) for rank, directive in enumerate(wanted)]
        for timetable, entries in zip(self._timetables, changes, strict=True):
            timetable.change(entries)
        return changes

    def _entries(self, next_iteration: int, rank: int, wanted: Directive) -> list[Entry]:
        planned = self.coordinator.findings.planned
        if wanted.phase == "baseline" and planned is not None:
            return baseline_window(next_iteration, wanted, planned.activation(rank))
        if wanted.phase == "baseline" and wanted.requests:  # the clocks are given back once
            return [(next_iteration, wanted), (next_iteration + 1, Directive("baseline"))]
        if wanted.phase != "sweep":
            return [(next_iteration, wanted)]
        held_mhz = held_clocks_mhz(self.coordinator.findings.baseline[-1].records)
        swept_mhz = sweep_clocks_mhz(self.coordinator.clocks_mhz, self.coordinator.options.sweep_clocks, held_mhz)
        return rest_of_sweep(next_iteration, wanted, swept_mhz)


def _data(row: Sequence[Handed], other_writer: str = "") -> IterationData:
    records = [entry.record for entry in row]
    signals = replace(signals_of(records), disobeyed=sum(entry.disobeyed > 0 for entry in row), other_writer=other_writer)
    return IterationData(records, [entry.program for entry in row], signals=signals)
