"""One iteration as a discrete-event simulation of the recorded programs."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from megatron_energy.emulation.settle.gpu import Costs, Gpu
from megatron_energy.emulation.settle.operation import Operation
from megatron_energy.emulation.settle.reductions import Reductions
from megatron_energy.emulation.settle.requests import NEVER, Request, RequestQueue
from megatron_energy.emulation.settle.timeline import Timeline
from megatron_energy.emulation.settle.transfers import Transfers
from megatron_energy.emulation.settle.wiring import Wiring
from megatron_energy.emulation.workload import Kind, Workload
from megatron_energy.records.iteration import RankIteration
from megatron_energy.records.steps import ClockRequest, Compute, GradSync, GradSyncStart, Optimizer, Post, Program, Step, Wait

_LATE_S = 1e-9  # below any real time; above rounding


class SettleError(RuntimeError):
    """The recorded programs cannot be executed together: they contradict each other or wait for ever."""


@dataclass(slots=True, eq=False)
class _Rank:
    """Where one rank is in its program."""

    gpu: Gpu
    program: Program
    timeline: Timeline
    position: int = 0
    operation: Operation | None = None
    record: RankIteration | None = None
    requests: int = 0
    late_raises: int = 0


@dataclass(slots=True, eq=False)
class _Gathering:
    """Ranks that have to arrive before any of them goes on."""

    ranks: Sequence[int]
    arrived: list[int] = field(default_factory=list)


class Simulation:
    """Executes one program per rank. Ranks start when their GPUs ended the last iteration; ``run`` is called once."""

    def __init__(self, wiring: Wiring, workload: Workload, costs: Costs, gpus: Sequence[Gpu], queue: RequestQueue, iteration: int) -> None:
        self._wiring, self._workload, self._costs, self._queue = wiring, workload, costs, queue
        self._iteration = iteration
        self._gpus = gpus
        self._events: list[tuple[float, int, Callable[[float, Any], None], Any]] = []
        self._order = 0
        self._transfers = Transfers(wiring, workload.transfer_s)
        self._lock_step = _gatherings(wiring.lock_step)
        self._reductions = [Reductions(len(group), workload.chunks) for group in wiring.data_parallel]
        self._reduction_of = {rank: self._reductions[i] for i, group in enumerate(wiring.data_parallel) for rank in group}
        self._data_parallel = _gatherings(wiring.data_parallel)
        everyone = _Gathering(range(wiring.size))
        self._everyone = dict.fromkeys(range(wiring.size), everyone)
        self._ranks: list[_Rank] = []
        self._running = wiring.size
        self._after_end: list[tuple[float, Request]] = []
        self._steps: dict[type, Callable[[float, _Rank, Any], bool]] = {
            Compute: self._compute,
            Post: self._post,
            Wait: self._wait,
            GradSyncStart: self._grad_sync_start,
            GradSync: self._grad_sync,
            Optimizer: self._optimizer,
            ClockRequest: self._clock_request,
        }

    def run(self, programs: Sequence[Program]) -> list[RankIteration]:
        """Records of all ranks, by rank. Raises SettleError when the programs cannot be executed together."""
        for gpu, program in zip(self._gpus, programs, strict=True):
            self._ranks.append(_Rank(gpu, program, Timeline(gpu.time_s, gpu.energy_mj, gpu.clock_mhz)))
            self._at(gpu.time_s, self._begin, gpu.rank)
        while self._running:
            if not self._events:
                raise SettleError(self._stuck())
            if self._queue.next_s <= self._events[0][0]:
                due = self._queue.pop()
                if due is not None:
                    self._in_force(*due)
            else:
                at_s, _, action, argument = heapq.heappop(self._events)
                action(at_s, argument)
        for at_s, request in self._after_end:
            self._queue.postpone(at_s, request)
        return [rank.record for rank in self._ranks if rank.record is not None]

    def _at(self, at_s: float, action: Callable[[float, Any], None], argument: Any) -> None:
        self._order += 1
        heapq.heappush(self._events, (at_s, self._order, action, argument))

    # Ranks walk through their programs; a step returns whether the rank goes on at once.

    def _begin(self, at_s: float, number: int) -> None:
        rank = self._ranks[number]
        if (rank.gpu.stage, -1, "other") in self._workload.costs:
            self._start(at_s, [number], "other")
        else:
            self._walk(at_s, number)

    def _walk(self, at_s: float, number: int) -> None:
        rank = self._ranks[number]
        program = rank.program
        while rank.position < len(program):
            step = program[rank.position]
            if not self._steps[type(step)](at_s, rank, step):
                return
            rank.position += 1
        self._end(at_s, rank)

    def _go_on(self, at_s: float, number: int) -> None:
        """What the rank was held up by is over."""
        self._ranks[number].position += 1
        self._walk(at_s, number)

    def _hold_up(self, at_s: float, rank: _Rank) -> None:
        gpu = rank.gpu
        rank.timeline.open(at_s, "wait")
        rank.timeline.set(at_s, self._costs.blocking_power_w(gpu), gpu.clock_mhz)

    def _end(self, at_s: float, rank: _Rank) -> None:
        gpu = rank.gpu
        gpu.time_s = at_s
        record, gpu.energy_mj = rank.timeline.finish(at_s, gpu.rank, self._iteration, self._workload.gpu.counter_update_s)
        if record.energy_samples:
            gpu.reading_mj = record.energy_samples[-1][1]
        record.requests, record.late_raises = rank.requests, rank.late_raises
        gpu.show(record)
        rank.record = record
        self._running -= 1

    # Joint steps: all members of a gathering arrive, then the work begins.

    def _gather(self, at_s: float, rank: _Rank, gathering: _Gathering, step: Step) -> list[int]:
        """The members once all have arrived, else nobody; who arrives early is held up."""
        arrived = gathering.arrived
        arrived.append(rank.gpu.rank)
        first = self._ranks[arrived[0]]
        expected = first.program[first.position]
        if expected != step:
            raise SettleError(f"ranks {first.gpu.rank} and {rank.gpu.rank} run together but differ: {expected} and {step}")
        if len(arrived) < len(gathering.ranks):
            self._hold_up(at_s, rank)
            return []
        gathering.arrived = []
        return list(gathering.ranks)

    def _compute(self, at_s: float, rank: _Rank, step: Compute) -> bool:
        members = self._gather(at_s, rank, self._lock_step[rank.gpu.rank], step)
        if members:
            self._start(at_s, members, step.kind, step.chunk, step.microbatch)
        return False

    def _optimizer(self, at_s: float, rank: _Rank, step: Optimizer) -> bool:
        for member in self._gather(at_s, rank, self._everyone[rank.gpu.rank], step):
            self._start(at_s, [member], "optimizer")
        return False

    def _grad_sync_start(self, at_s: float, rank: _Rank, step: GradSyncStart) -> bool:
        reductions = self._reduction_of[rank.gpu.rank]
        reductions.start(at_s, step.chunk, self._costs.point(rank.gpu, -1, "grad-sync").time_s)
        return True

    def _grad_sync(self, at_s: float, rank: _Rank, step: GradSync) -> bool:
        members = self._gather(at_s, rank, self._data_parallel[rank.gpu.rank], step)
        if members:
            begin_s, work = self._reduction_of[rank.gpu.rank].finish(at_s)
            if begin_s > at_s:  # reductions that were started earlier still keep the network busy
                self._hold_up(at_s, rank)
                self._at(begin_s, self._start_grad_sync, (members, work))
            else:
                self._start_grad_sync(at_s, (members, work))
        return False

    def _start_grad_sync(self, at_s: float, members_and_work: tuple[list[int], float]) -> None:
        members, work = members_and_work
        self._start(at_s, members, "grad-sync", work=work)

    # Transfers.

    def _post(self, at_s: float, rank: _Rank, step: Post) -> bool:
        meeting = self._transfers.post(at_s, rank.gpu.rank, step.transfer, step.index)
        if meeting.done_s < NEVER:
            for waiting in meeting.waiting:
                self._at(meeting.done_s, self._go_on, waiting)
            meeting.waiting.clear()
        return True

    def _wait(self, at_s: float, rank: _Rank, step: Wait) -> bool:
        meeting = self._transfers.wait(rank.gpu.rank, step.transfer, step.index)
        if meeting.done_s <= at_s:
            return True
        self._hold_up(at_s, rank)
        if meeting.done_s < NEVER:
            self._at(meeting.done_s, self._go_on, rank.gpu.rank)
        else:
            meeting.waiting.append(rank.gpu.rank)
        return False

    # Operations.

    def _start(self, at_s: float, members: list[int], kind: Kind, chunk: int = -1, microbatch: int = -1, work: float = 1.0) -> None:
        ranks = [self._ranks[member] for member in members]
        pairs = [(rank.gpu, rank.timeline) for rank in ranks]
        operation = Operation(pairs, kind, chunk, microbatch, self._costs, at_s, work)
        for rank in ranks:
            rank.operation = operation
        self._at(operation.end_s, self._finish, (operation, 0))

    def _finish(self, at_s: float, operation_and_version: tuple[Operation, int]) -> None:
        operation, version = operation_and_version
        if version != operation.version:
            return  # a clock changed on the way; another event stands for the new end
        go_on = self._walk if operation.kind == "other" else self._go_on
        for gpu, timeline in operation.members:
            timeline.close(at_s)
            self._ranks[gpu.rank].operation = None
        for gpu, _ in operation.members:
            go_on(at_s, gpu.rank)

    # Clocks.

    def _clock_request(self, at_s: float, rank: _Rank, step: ClockRequest) -> bool:
        gpu, model = rank.gpu, self._workload.gpu
        clock_mhz = model.supported_clock_mhz(step.clock_mhz) if step.clock_mhz else model.sm_clock_max_mhz
        request = Request(gpu.rank, clock_mhz, at_s + step.delay_s, step.ahead)
        gpu.pending.append(request)
        self._queue.issue(request)
        rank.requests += 1
        return True

    def _in_force(self, at_s: float, request: Request) -> None:
        rank = self._ranks[request.rank]
        gpu = rank.gpu
        if rank.record is not None:  # its iteration is over: the change belongs to the next one
            self._after_end.append((at_s, request))
            return
        gpu.pending.remove(request)
        if request.clock_mhz == gpu.clock_mhz:
            return
        if request.clock_mhz > gpu.clock_mhz and request.needed_s is not None and request.needed_s < at_s - _LATE_S:
            rank.late_raises += 1
        gpu.clock_mhz = request.clock_mhz
        operation = rank.operation
        if operation is None:
            rank.timeline.set(at_s, self._costs.blocking_power_w(gpu), gpu.clock_mhz)
        else:
            operation.clock_changed(at_s)
            self._at(operation.end_s, self._finish, (operation, operation.version))

    def _stuck(self) -> str:
        """Which ranks wait for ever, and for what."""
        stuck = [rank for rank in self._ranks if rank.record is None]
        names = [f"rank {rank.gpu.rank} at step {rank.position} {rank.program[rank.position]}" for rank in stuck[:8]]
        more = f" and {len(stuck) - 8} more" if len(stuck) > 8 else ""
        return f"deadlock: the recorded programs wait for each other for ever: {', '.join(names)}{more}"


def _gatherings(groups: Sequence[Sequence[int]]) -> dict[int, _Gathering]:
    """The gathering of each rank."""
    return {rank: gathering for group in groups for gathering in [_Gathering(group)] for rank in group}
