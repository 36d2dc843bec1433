"""One rank's part in a run on GPUs whose clocks are controlled.

Between two log intervals of Megatron's nothing is exchanged: every rank follows its timetable, records, and requests clocks through
its own controller. At a log interval the home rank hears what all ranks did and may change their timetables from the next iteration on.
"""

import dataclasses
import math
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from megatron_energy.gpus.controller import ClockController
from megatron_energy.gpus.counts import Counts
from megatron_energy.records.iteration import RankIteration
from megatron_energy.records.steps import ClockRequest, Program
from megatron_energy.session.actuation import Hold
from megatron_energy.session.conductor import Batch, Conductor, Handed
from megatron_energy.session.defects import Fence, Step, end_all, no_exchange, noted
from megatron_energy.session.directive import Directive, TransitionPoint, evaluation_requests
from megatron_energy.session.exchange import Exchange, intact
from megatron_energy.session.fallback import LOWERED, Fallback
from megatron_energy.session.instruments import Ended, Instruments
from megatron_energy.session.rank_records import iteration_begin_s, thinned
from megatron_energy.session.reporting import show
from megatron_energy.session.timetable import Entry, Timetable

IN_FULL = 3
"""So many iterations under a plan are handed in with all their spans, to be drawn; the others only with what a report needs."""

LEARNED_FROM = ("baseline", "sweep")
"""Phases whose iterations tell powers of operations: these need every step of the energy counter."""

COUNTED = ("issued", "late_raises", "disobeyed", "dropped_lowers")
"""What the controller counted, as it is handed in with every iteration."""

Requests = dict[TransitionPoint, tuple[ClockRequest, ...]]


class _Pending(NamedTuple):
    """An iteration whose record is still to be made."""

    serial: int
    ended: Ended
    iteration: int
    directive: Directive
    program: Program
    trusted: bool
    other_size: bool
    requests: int
    late_raises: int
    disobeyed: int
    dropped_lowers: int


class ControlledSession:
    """Records, requests, and follows the timetable of one rank.

    Args:
        exchange: to the other ranks.
        hold: this rank's GPU, to be given back at the end.
        controller: started; issues this rank's requests.
        instruments: open; record this rank's GPU.
        timetable: this rank's.
        conductor: on the home rank.
        fallback: what may take this rank to maximum clocks between two log intervals.
        settled_at_log: Megatron has waited for the GPU when it logs. If not, the last iteration is handed in one log interval later,
            so that no wait is added.
        other_writer: asked at log intervals who else has set something of this GPU since, in words; empty: nobody.
        say: prints one line for the user.
    """

    def __init__(
        self,
        exchange: Exchange,
        hold: Hold,
        controller: ClockController,
        instruments: Instruments,
        timetable: Timetable,
        conductor: Conductor | None,
        fallback: Fallback,
        settled_at_log: bool = True,
        other_writer: Callable[[], str] = lambda: "",
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.controller = controller
        self._exchange, self._hold, self._instruments = exchange, hold, instruments
        self._timetable, self._conductor, self._fallback = timetable, conductor, fallback
        self._other_writer, self._say = other_writer, say
        self._kept_back = 0 if settled_at_log else 1
        self._iteration = 0  # training iterations so far
        self._serial = 0  # evaluations too
        self._pending: list[_Pending] = []
        self._before: _Pending | None = None  # the iteration before, whose time is known one later
        self._before_ended_s: float | None = None
        self._in_full: dict[int, int] = {}  # plan version -> iterations handed in with all spans
        self._counted = Counts()
        self._broken: str | None = None
        self._stale: str | None = None
        self._stopped: str | None = None
        self._microbatches: int | None = None  # where the timetable is for another number
        self._told: set[str] = set()
        self._talking = Fence(self._exchange_failed, describe=no_exchange)
        self._conducting = Fence(self._conductor_failed, conductor.reporter.directory if conductor is not None else None)

    @property
    def requests(self) -> Requests:
        """This rank's clock requests in the next training iteration."""
        return {} if self._at_maximum else self._timetable.at(self._iteration + 1).requests

    @property
    def evaluation_requests(self) -> Requests:
        """This rank's clock requests in an evaluation before the next training iteration."""
        return {} if self._at_maximum else evaluation_requests(self._timetable.at(self._iteration + 1))

    @property
    def _at_maximum(self) -> bool:
        """Likewise, or only until the next log interval."""
        return self._alone or bool(self._fallback.reason)

    @property
    def _alone(self) -> bool:
        """Whether this rank has left its timetable for maximum clocks."""
        return (self._broken or self._stale or self._stopped or self._microbatches) is not None

    def mark(self, point: TransitionPoint) -> None:
        """A point of Megatron's schedule is being enqueued."""
        if self._fallback.look():
            self.controller.to_maximum()
        self._instruments.mark(point)

    def request(self, request: ClockRequest) -> None:
        """A clock is asked for, once the GPU has done what was enqueued so far."""
        if not self._at_maximum:
            self.controller.request(request.clock_mhz, request.delay_s, math.inf if request.raise_in_s is None else request.raise_in_s)

    def broken(self, reason: str) -> None:
        """The running iteration cannot be recorded faithfully."""
        if self._broken is None:
            self._broken = reason
            self.controller.to_maximum()

    def stale(self, reason: str) -> None:
        """What runs from now on is not what the plan was made for. All ranks see it in the same iteration."""
        if self._stale is None:
            self._stale = reason
            self.controller.to_maximum()

    def resized(self, microbatches: int) -> None:
        """Iterations have another number of microbatches from now on; at a log interval a timetable for these is asked for."""
        self._microbatches = microbatches
        self._fallback.resized()
        self.controller.to_maximum()

    def stop(self, reason: str) -> None:
        """This rank's clocks cannot be controlled any more, so it runs at maximum clocks alone. From any thread."""
        if self._stopped is None:
            self._stopped = reason
            self.controller.to_maximum()

    def iteration(self, number: int, program: Program, evaluation: bool) -> None:
        """The host is done with an iteration. Nothing is waited for."""
        self._serial += 1
        if not evaluation:
            self._iteration += 1
        try:
            self._note(number, program, evaluation)
        except Exception as error:  # noqa: BLE001 -- a defect of ours ends the plan, not the training
            self.broken(noted(error))

    def _note(self, number: int, program: Program, evaluation: bool) -> None:
        directive = self._timetable.at(self._iteration) if self._iteration else Directive("baseline")
        trusted = (self._broken or self._stale or self._microbatches) is None and (self._stopped is None or directive.phase != "sweep")
        trusted = trusted and not (self._fallback.reason and directive.phase in LOWERED)
        ended = self._instruments.end(number, evaluation)
        if self._instruments.failed:
            self.stop(f"its GPU's events failed: {self._instruments.failed}")
        counts = self.controller.counts
        before, self._counted = self._counted, counts
        new = [getattr(counts, name) - getattr(before, name) for name in COUNTED]
        kept = program if directive.phase == "baseline" else []  # the schedule is told from these
        pending = _Pending(self._serial, ended, self._iteration, directive, kept, trusted, self._microbatches is not None, *new)
        self._watch(pending)
        self._expect_next()
        if not self._talking.failed:  # otherwise nobody will ask
            self._pending.append(pending)

    def _expect_next(self) -> None:
        self._instruments.learning(self._timetable.at(self._iteration + 1).phase in LEARNED_FROM)

    def _watch(self, now: _Pending) -> None:
        """The iteration before this one has its times now: do such iterations look too long?"""
        before, self._before = self._before, now
        timed = None if before is None else before.ended.timed
        if before is None or timed is None:
            return
        begin_s, self._before_ended_s = iteration_begin_s(timed, self._before_ended_s), timed.end_s
        if before.ended.evaluation or not before.trusted:
            self._fallback.interrupt()
        elif self._fallback.observe(before.ended.number, before.directive, timed.end_s - begin_s):
            self.controller.to_maximum()

    def log(self, iteration: int, writer: object) -> None:
        """Megatron's log interval: hand in what was recorded, and hear what comes next."""
        if not self._kept_back:
            self.controller.caught_up()  # the host has just waited for the GPU
        self._talking.run(lambda: self._talk(iteration, writer))

    def _exchange_failed(self, why: str) -> None:
        """The others will not come any more."""
        self._pending = []
        self.stop(why)
        if self._conductor is not None:
            self._say(f"maximum clocks from here on, and no more records: {why}")

    def _talk(self, iteration: int, writer: object) -> None:
        gathered = self._exchange.gather(self._batch())
        replies: list[list[Entry]] | None = None
        if self._conductor is not None and gathered is not None:
            replies = self._conducted(self._conductor, gathered, iteration, writer)
        at_home = self._exchange.rank == self._exchange.home
        nothing: list[list[Entry] | None] = [None] * self._exchange.world_size
        answered = self._conductor.answered if self._conductor is not None else None
        entries, answered = self._exchange.scatter([(reply, answered) for reply in replies or nothing] if at_home else None)
        if entries is not None:
            self._timetable.change(entries)
            self._expect_next()
        self._fallback.heard()
        if answered == self._microbatches:
            self._microbatches = None

    def _conducted(self, conductor: Conductor, gathered: list[Batch], iteration: int, writer: object) -> list[list[Entry]] | None:
        """What comes next. A defect of ours ends the plan and the records, not the training: the other ranks wait for an answer."""

        def conduct() -> list[list[Entry]] | None:
            replies = conductor.take([intact(batch) for batch in gathered], self._iteration + 1)
            conductor.write(iteration, writer)
            return replies

        ended = self._conducting.failed
        replies = self._conducting.run(conduct)
        return conductor.at_maximum(self._iteration + 1) if self._conducting.failed and not ended else replies

    def _conductor_failed(self, why: str) -> None:
        if self._conductor is not None:
            self._conductor.give_up(why)

    def _batch(self) -> Batch:
        """What has happened since the last one. A defect of ours is told, and not raised while the others wait."""
        try:
            entries, other_writer = self._recorded()
        except Exception as error:  # noqa: BLE001 -- see above
            entries, other_writer = [], ""
            with suppress(Exception):
                self.broken(noted(error))
        reasons = (self._once(self._broken), self._once(self._stale), self._once(self._stopped))
        return Batch(entries, *reasons, self._microbatches, other_writer, self._fallback.reason, self._fallback.dropped)

    def _recorded(self) -> tuple[list[Handed], str]:
        """The iterations that are ready, and who else has set something of this GPU."""
        ready = self._pending[: len(self._pending) - self._kept_back]
        self._pending = self._pending[len(ready) :]
        records = zip(ready, self._instruments.records([pending.ended for pending in ready]), strict=True)
        return [self._entry(pending, record) for pending, record in records], self._other_writer() or self._instruments.other_writer()

    def _once(self, reason: str | None) -> str | None:
        """The reason where it was not told before."""
        if reason is None or reason in self._told:
            return None
        self._told.add(reason)
        return reason

    def _entry(self, pending: _Pending, record: RankIteration) -> Handed:
        new = (pending.requests, pending.late_raises, pending.dropped_lowers)
        counted = dataclasses.replace(record, requests=new[0], late_raises=new[1], dropped_lowers=new[2])
        kept = counted if self._is_wanted_in_full(pending) else thinned(counted)
        return Handed(pending.serial, kept, pending.iteration, pending.program, pending.trusted, pending.other_size, pending.disobeyed)

    def _is_wanted_in_full(self, pending: _Pending) -> bool:
        if pending.ended.evaluation or pending.directive.phase not in ("baseline", "sweep", "planned"):
            return False
        if pending.directive.phase == "planned":
            count = self._in_full.get(pending.directive.plan_version, 0)
            self._in_full[pending.directive.plan_version] = count + 1
            return count < IN_FULL
        return True

    def close(self) -> None:
        """The end of the run: the clock is given back first, and the home rank reports last."""
        rank, conductor = self._exchange.rank, self._conductor
        steps: list[Step] = [
            (f"rank {rank}: the end of its clock control", self.controller.close),
            (f"rank {rank}: its GPU may not be as it was found", self._hold.close),
            (f"rank {rank}: the end of its instruments", self._instruments.close),
            (f"rank {rank}: the end of its live switch", self._fallback.close),
        ]
        if conductor is not None:
            steps += [("the end of the run", conductor.coordinator.finish), ("no report", lambda: show(conductor.reporter.finish()))]
        end_all(steps, self._say, conductor.reporter.directory if conductor is not None else None)
