"""One rank's part in a run on real GPUs that are measured and left as they are.

Nothing is exchanged between ranks except at Megatron's log interval.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron_energy.errors import UserError
from megatron_energy.gpus.errors import GpuError
from megatron_energy.gpus.library import is_emulated
from megatron_energy.gpus.meter import meter_for
from megatron_energy.gpus.nvml import NvmlGpu
from megatron_energy.records.iteration import RankIteration
from megatron_energy.records.steps import Program
from megatron_energy.records.summary import Phase
from megatron_energy.session.defects import Fence, Step, end_all, no_exchange, noted
from megatron_energy.session.directive import TransitionPoint
from megatron_energy.session.exchange import Exchange, intact
from megatron_energy.session.facts import JobFacts, RankFacts
from megatron_energy.session.findings import Findings, IterationData
from megatron_energy.session.options import EnergyOptions
from megatron_energy.session.reporting import Reporter, show
from megatron_energy.session.summaries import summarise


@dataclass(frozen=True)
class Reading:
    """One iteration of one rank, as its host saw it. ``energy_j`` is NaN where the GPU could not be read."""

    number: int
    evaluation: bool
    record: RankIteration
    energy_j: float


class MeasuredSession:
    """Meters this rank's GPU; the home rank reports for all.

    Args:
        options: what the user asked for.
        facts: this rank's facts.
        exchange: to the other ranks.
        gpu: this rank's GPU.
        say: prints one line for the user, on the home rank.
        why_uncontrolled: why clocks are left as they are although a plan was asked for; empty where none was.
        clock: host time in s.

    Raises:
        UserError: on every rank, where the GPU of one cannot be measured or RUN_DIR cannot be had.
    """

    def __init__(
        self,
        options: EnergyOptions,
        facts: RankFacts,
        exchange: Exchange,
        gpu: NvmlGpu,
        say: Callable[[str], None],
        why_uncontrolled: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._exchange, self._facts, self._gpu, self._clock = exchange, facts, gpu, clock
        self._meter = meter_for(gpu)
        mistake = self._open_meter()
        self._since_s = clock()
        self._say = say
        self._readings: list[Reading] = []
        self._defect: str = ""  # has ended them on this rank
        gathered, uuids, mistakes = exchange.gather(facts), exchange.gather(gpu.uuid), exchange.gather(mistake)
        self._reporter: Reporter | None = None
        if gathered is not None and uuids is not None and mistakes is not None:
            self._job, self._uuids = JobFacts(tuple(gathered)), uuids
            mistake = next(filter(None, mistakes), None) or self._open_reporter(options, say, why_uncontrolled)
        told = exchange.broadcast(mistake)
        if told is not None:
            self._meter.close()
            raise UserError(told)
        self._talking = Fence(self._no_more, describe=no_exchange)
        self._records = Fence(self._no_more, self._directory)
        self.requests: dict[TransitionPoint, Any] = {}
        self.evaluation_requests: dict[TransitionPoint, Any] = {}

    def _open_meter(self) -> str | None:
        """Why the GPU cannot be measured, if so: the others are to end as well."""
        try:
            self._meter.open()
        except GpuError as error:
            return f"cannot measure the GPU of rank {self._facts.rank}: {error}"
        return None

    def _open_reporter(self, options: EnergyOptions, say: Callable[[str], None], why_uncontrolled: str) -> str | None:
        """On the home rank; why nothing can be reported, if so."""
        findings = Findings(off_reason=why_uncontrolled or None)
        try:
            self._reporter = Reporter(options, self._job, findings, f"{self._job.world_size} GPUs", say)
        except UserError as error:
            return str(error)
        emulated = "emulated " if is_emulated() else ""
        why = f" ({why_uncontrolled})" if why_uncontrolled else ""
        say(f"measuring {len(set(self._uuids))} {emulated}GPUs ({self._meter.source_reason}); clocks are left as they are{why}")
        return None

    def broken(self, reason: str) -> None:
        """Energy is measured whatever the schedule does."""

    def stale(self, reason: str) -> None:
        """No plan can become stale here."""

    def resized(self, microbatches: int) -> None:
        """Energy is measured whatever an iteration holds."""

    @property
    def _directory(self) -> Path | None:
        return None if self._reporter is None else self._reporter.directory

    def _no_more(self, why: str) -> None:
        if self._reporter is not None:
            self._say(f"no more records: {why}")

    def iteration(self, number: int, program: Program, evaluation: bool) -> None:
        """Read the counter at the end of an iteration. Megatron's own global norm has made the host wait for the GPU here."""
        if self._talking.failed:  # nobody will ask
            return
        try:
            self._readings.append(self._reading(number, evaluation))
        except Exception as error:  # noqa: BLE001 -- a defect of ours is told at the log interval, where the others wait for this rank
            self._defect = self._defect or noted(error, self._directory)

    def _reading(self, number: int, evaluation: bool) -> Reading:
        now_s = self._clock()
        lap = self._meter.lap()
        energy_j = lap.energy_j if lap is not None and lap.energy_j is not None else math.nan
        record = RankIteration(self._facts.rank, number, self._since_s, now_s, energy_j, evaluation=evaluation, emulated=is_emulated())
        with suppress(GpuError):  # the meter says that the GPU cannot be read; the clock stays unknown
            record.clock_changes = [(self._since_s, self._gpu.sm_clock_mhz())]
        self._since_s = now_s
        return Reading(number, evaluation, record, energy_j)

    def log(self, iteration: int, writer: Any) -> None:
        """Megatron's log interval: gather what was read since the last one. An error of ours ends the records, not the training."""
        self._talking.run(lambda: self._talk(iteration, writer))

    def _talk(self, iteration: int, writer: Any) -> None:
        readings, self._readings = self._readings, []
        gathered = self._exchange.gather(self._defect or readings)  # by all ranks, whatever has become of the records
        reporter = self._reporter
        if reporter is not None and gathered is not None:
            self._records.run(lambda: self._write(reporter, gathered, iteration, writer))

    def _write(self, reporter: Reporter, gathered: Sequence[list[Reading] | str], iteration: int, writer: Any) -> None:
        whole: list[list[Reading] | str] = [intact(handed) for handed in gathered]
        lost = next((f"rank {rank}: {handed}" for rank, handed in enumerate(whole) if isinstance(handed, str)), None)
        if lost is not None:
            self._records.end(lost)
            return
        self._report(reporter, [handed for handed in whole if not isinstance(handed, str)])
        reporter.write(iteration, writer)

    def _report(self, reporter: Reporter, gathered: Sequence[list[Reading]]) -> None:
        for readings in zip(*gathered, strict=False):
            phase: Phase = "evaluation" if readings[0].evaluation else "measure"
            records = [r.record for r in readings]
            energies_j = [r.energy_j for r in readings]
            summary = summarise(readings[0].number, phase, records, energies_j, self._uuids, self._job, reporter.findings)
            reporter.add(summary, IterationData(records, []))

    def close(self) -> None:
        """The end of the run."""
        steps: list[Step] = [(f"rank {self._facts.rank}: the end of its meter", self._meter.close)]
        reporter = self._reporter
        if reporter is not None:
            steps.append(("no report", lambda: show(reporter.finish())))
        end_all(steps, self._say, self._directory)
