"""The start of a run on this host's GPUs: can clocks be controlled on all of them, how long do switches take, what is planned for."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from megatron_energy.errors import UserError
from megatron_energy.gpus.actuators import Actuator, DryRunActuator
from megatron_energy.gpus.controller import ClockController
from megatron_energy.gpus.errors import GpuError
from megatron_energy.gpus.events import EventSource
from megatron_energy.gpus.issuer import Settings
from megatron_energy.gpus.latency import IN_FORCE_S, NODE_TURN_S, SwitchingLatency, slowest
from megatron_energy.gpus.library import is_emulated
from megatron_energy.gpus.nvml import NvmlGpu
from megatron_energy.gpus.sampler import GpuSampler
from megatron_energy.planning.plan_file import load_plan
from megatron_energy.session.actuation import SIGKILL_MEANS, Hold, Way, take
from megatron_energy.session.clock_trace import TracedActuator
from megatron_energy.session.conductor import Conductor
from megatron_energy.session.control import Control
from megatron_energy.session.controlled_session import ControlledSession
from megatron_energy.session.coordinator import Coordinator
from megatron_energy.session.defects import end_all
from megatron_energy.session.exchange import Exchange
from megatron_energy.session.facts import JobFacts, RankFacts
from megatron_energy.session.fallback import Fallback, OwnGuard
from megatron_energy.session.instruments import Instruments
from megatron_energy.session.lead import measure_switching, probe
from megatron_energy.session.limit_watch import LimitWatch
from megatron_energy.session.measured_session import MeasuredSession
from megatron_energy.session.node import fullest_node, neighbours, open_memory
from megatron_energy.session.options import UNPLANNED, EnergyOptions
from megatron_energy.session.planner import Planner
from megatron_energy.session.rank_records import Recording
from megatron_energy.session.reporting import Reporter
from megatron_energy.session.sweep import LOWEST_TRIED
from megatron_energy.session.timetable import Timetable, opening

Say = Callable[[str], None]


@dataclass(frozen=True)
class Work:
    """What the Megatron layer knows of this rank's GPU.

    Attributes:
        events: on its stream of work.
        kernel_time_s: runs a short compute-bound kernel and returns its duration in s; None: there is no such thing here.
        settled_at_log: see :class:`~megatron_energy.session.controlled_session.ControlledSession`.
    """

    events: EventSource
    kernel_time_s: Callable[[], float] | None = None
    settled_at_log: bool = True


@dataclass(frozen=True)
class _Offer:
    """What one rank can do, for the home rank."""

    way: Way
    uuid: str
    gpu_name: str
    clocks_mhz: tuple[int, ...]


@dataclass(frozen=True)
class _Terms:
    """What the home rank decided. ``refused``: why clocks are not controlled; then the rest does not count."""

    facts: JobFacts
    refused: str = ""
    clocks_mhz: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Agreed:
    """How early raises are requested, in s, and the slowdown allowed, as a fraction."""

    lead_s: float
    slowdown: float


def start(
    options: EnergyOptions, facts: RankFacts, exchange: Exchange, gpu: NvmlGpu, work: Work, say: Say
) -> ControlledSession | MeasuredSession:
    """This rank's session. All ranks call it together.

    Raises:
        UserError: a GPU that cannot be measured, or a plan or profile that does not fit.
    """
    lost: list[str] = []
    running: list[ControlledSession] = []

    def on_lost(reason: str) -> None:
        lost.append(reason)
        for session in running:
            session.stop(reason)

    hold = _hold(options, gpu, on_lost)
    actuator: Actuator = hold.actuator if hold.actuator is not None else DryRunActuator()
    terms, offers = _agree(exchange, facts, _offer(hold, gpu))
    refused, latencies = terms.refused, list[SwitchingLatency]()
    if not refused:
        latencies, refused = _latencies(options, exchange, terms, gpu, hold, actuator, work)
    if refused:
        end_all([(f"rank {facts.rank}: its GPU may not be as it was found", hold.close)], say)
        return MeasuredSession(options, facts, exchange, gpu, say, why_uncontrolled=refused)
    opened = _Opened(options, exchange, terms, gpu, work, say)
    try:
        conductor, agreed = opened.home(offers, latencies)
        session = opened.session(hold, actuator, latencies[0].in_force_s if latencies else IN_FORCE_S, agreed, conductor)
    except BaseException:  # a defect of ours too: the clock is given back
        end_all([(f"rank {facts.rank}: its GPU may not be as it was found", hold.close)], say)
        raise
    running.append(session)
    for reason in lost:
        session.stop(reason)
    return session


def _requests_nothing(options: EnergyOptions) -> bool:
    """Whether no clock is ever asked for."""
    return options.policy == "dry-run" or options.policy in UNPLANNED


def _hold(options: EnergyOptions, gpu: NvmlGpu, on_lost: Callable[[str], None]) -> Hold:
    return Hold(Way("none")) if _requests_nothing(options) else take(gpu, on_lost)


def _offer(hold: Hold, gpu: NvmlGpu) -> _Offer:
    try:
        supported = gpu.supported_sm_clocks_mhz()
    except GpuError as error:
        return _Offer(Way("none", str(error)), gpu.uuid, "", ())
    low, high = hold.way.clocks_mhz or (supported[-1], supported[0])
    return _Offer(hold.way, gpu.uuid, gpu.name, tuple(mhz for mhz in supported if low <= mhz <= high))


def _agree(exchange: Exchange, facts: RankFacts, offer: _Offer) -> tuple[_Terms, list[_Offer]]:
    """The terms on all ranks, and what the ranks offered on the home rank."""
    gathered, offers = exchange.gather(facts), exchange.gather(offer)
    terms = None
    if gathered is not None and offers is not None:
        job = JobFacts(tuple(gathered))
        common = set(offers[0].clocks_mhz).intersection(*(o.clocks_mhz for o in offers))
        terms = _Terms(job, _refusal(offers, common), tuple(sorted(common, reverse=True)))
    agreed: _Terms = exchange.broadcast(terms)
    return agreed, offers or []


def _refusal(offers: Sequence[_Offer], common: set[int]) -> str:
    """Why clocks are not controlled: all ranks can, or none does, as a profile is learned from all of them."""
    for rank, offer in enumerate(offers):
        if offer.way.reason:
            return f"rank {rank}: {offer.way.reason}"
    if len({offer.uuid for offer in offers}) < len(offers):
        return "several ranks share a GPU, whose clock can follow only one of them"
    tops_mhz = sorted({offer.clocks_mhz[0] for offer in offers})
    if len(tops_mhz) > 1:
        return f"the GPUs have different maximum clocks ({tops_mhz[0]} and {tops_mhz[-1]} MHz): a plan needs GPUs of one kind"
    if len([mhz for mhz in common if mhz >= LOWEST_TRIED * tops_mhz[0]]) < 2:
        return "the GPUs have no two clocks in common"
    return ""


def _latencies(
    options: EnergyOptions, exchange: Exchange, terms: _Terms, gpu: NvmlGpu, hold: Hold, actuator: Actuator, work: Work
) -> tuple[list[SwitchingLatency], str]:
    """This rank's switching latency and, on the home rank, those of all ranks after it; and why clocks cannot be switched, if so.

    These are the first real requests: what NVML says to them has the last word about permissions.
    """
    if _requests_nothing(options):
        return [], ""
    top_mhz, restorable = terms.clocks_mhz[0], hold.way.kind == "clockd"
    lower_mhz = min(terms.clocks_mhz, key=lambda mhz: abs(mhz - LOWEST_TRIED * top_mhz))
    mine = measure_switching(
        lambda: probe(actuator, gpu, (top_mhz, lower_mhz), work.kernel_time_s, restorable),
        exchange,
        neighbours(terms.facts, exchange.rank).index(exchange.rank),
        fullest_node(terms.facts),
    )
    gathered = exchange.gather(mine)
    failed = None
    if gathered is not None:
        failed = next((f"rank {rank}: {found}" for rank, found in enumerate(gathered) if isinstance(found, str)), "")
    refused: str = exchange.broadcast(failed)
    return [found for found in (mine, *(gathered or [])) if not isinstance(found, str)], refused


class _Opened:
    """The rest of the start, once clocks can be controlled."""

    def __init__(self, options: EnergyOptions, exchange: Exchange, terms: _Terms, gpu: NvmlGpu, work: Work, say: Say) -> None:
        self._options, self._exchange, self._terms = options, exchange, terms
        self._gpu, self._work, self._say = gpu, work, say

    def home(self, offers: Sequence[_Offer], latencies: Sequence[SwitchingLatency]) -> tuple[Conductor | None, _Agreed]:
        """The conductor on the home rank, and what all ranks have to know; a mistake that shows only there is raised on every rank."""
        conductor: Conductor | None = None
        defect: Exception | None = None
        told: _Agreed | str | None = None
        if self._exchange.rank == self._exchange.home:
            try:
                lead_s = self._lead_s(latencies[1:])
                conductor, told = self._conductor(offers, lead_s), _Agreed(lead_s, self._slowdown())
            except UserError as error:
                told = str(error)
            except Exception as error:  # noqa: BLE001 -- the others wait for an answer, whatever happens here
                defect, told = error, f"the start of rank {self._exchange.rank} failed ({type(error).__name__}: {error})"
        agreed: _Agreed | str = self._exchange.broadcast(told)
        if isinstance(agreed, str):
            raise defect or UserError(agreed)
        return conductor, agreed

    def _slowdown(self) -> float:
        """Of a given plan, what its maker allowed."""
        return self._options.slowdown if self._options.plan is None else load_plan(self._options.plan).slowdown

    def _lead_s(self, latencies: Sequence[SwitchingLatency]) -> float:
        """Of the slowest GPU of the job; of a given plan where that was made for less."""
        if self._options.policy in UNPLANNED:
            return 0.0
        lead_s = self._measured_lead_s(latencies) if latencies else self._published_lead_s()
        plan = load_plan(self._options.plan) if self._options.plan is not None else None
        if plan is None or not plan.switches_max or plan.lead_s >= lead_s:
            return lead_s
        self._say(f"the plan requests raises {1e3 * plan.lead_s:.0f} ms early only: some may come late")
        return plan.lead_s

    def _measured_lead_s(self, latencies: Sequence[SwitchingLatency]) -> float:
        latency, emulated = slowest(latencies), " (emulated GPUs)" if is_emulated() else ""
        lead_s = latency.lead_s
        self._say(
            f"clock switches: {1e3 * latency.call_s.median_s:.1f} ms alone, raises are requested {1e3 * lead_s:.0f} ms early{emulated}"
        )
        return lead_s

    def _published_lead_s(self) -> float:
        """A dry run switches no clock, so it cannot measure; a plan without a lead would promise more than one that is run."""
        lead_s = NODE_TURN_S * fullest_node(self._terms.facts) + IN_FORCE_S
        self._say(f"clock switches: not measured in a dry run; raises are planned {1e3 * lead_s:.0f} ms early, by published figures")
        return lead_s

    def _conductor(self, offers: Sequence[_Offer], lead_s: float) -> Conductor:
        options, facts, clocks_mhz = self._options, self._terms.facts, self._terms.clocks_mhz
        planner = Planner(options, facts, clocks_mhz, lead_s, offers[0].gpu_name, self._say)
        planner.check()
        coordinator = Coordinator(options, facts, planner, clocks_mhz, self._say)
        emulated = "emulated " if is_emulated() else ""
        title = f"{facts.world_size} {emulated}{offers[0].gpu_name}"
        reporter = Reporter(options, facts, coordinator.findings, title, self._say, aside=True)
        timetables = [Timetable(opening(options, clocks_mhz)) for _ in facts.ranks]
        ways = SIGKILL_MEANS[offers[0].way.kind] if not _requests_nothing(options) else "clocks are not changed"
        self._say(f"{facts.world_size} {emulated}GPUs: {ways}")
        return Conductor(coordinator, timetables, facts, [offer.uuid for offer in offers], reporter)

    def session(self, hold: Hold, actuator: Actuator, in_force_s: float, agreed: _Agreed, conductor: Conductor | None) -> ControlledSession:
        """Start this rank's thread and instruments."""
        traced, sampler = TracedActuator(actuator), GpuSampler(self._gpu)
        recording = Recording(self._exchange.rank, time.time() - time.monotonic(), is_emulated())
        node = open_memory(self._exchange, self._terms.facts)
        try:
            sampler.open()
            instruments = Instruments(sampler, traced, self._work.events, recording, self._terms.clocks_mhz[0], in_force_s)
        except GpuError as error:
            raise UserError(f"cannot measure the GPU of rank {self._exchange.rank}: {error}") from error
        stopped: list[Callable[[str], None]] = []
        settings = Settings(lead_s=agreed.lead_s, in_force_s=in_force_s)
        controller = ClockController(
            traced, self._work.events, settings, readings=self._gpu, turns=node.turns, on_stop=lambda why: stopped[0](why)
        )
        timetable = Timetable(opening(self._options, self._terms.clocks_mhz))
        limit = LimitWatch(lambda: self._gpu.power_limits().current_w)
        fallback = Fallback(node.switch, OwnGuard(agreed.slowdown))
        if node.first and not _requests_nothing(self._options):
            node.switch.watch(Control(self._options.run_dir, lambda line: None).dropped)  # the home rank says what is to be said
        parts = (hold, controller, instruments, timetable, conductor, fallback)
        session = ControlledSession(self._exchange, *parts, self._work.settled_at_log, limit.changed, self._say)
        stopped.append(session.stop)
        controller.start()
        return session
