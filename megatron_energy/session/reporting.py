"""Everything that a run leaves behind for people: journal, TensorBoard, time line, report. On the home rank only."""

import itertools
from collections.abc import Callable
from pathlib import Path

from megatron_energy.errors import UserError
from megatron_energy.observe.facts import PlanFacts
from megatron_energy.observe.journal import Journal
from megatron_energy.observe.plan_text import PlannedGpus, plan_markdown
from megatron_energy.observe.report import Report, build_report
from megatron_energy.observe.tensorboard import TensorBoardLog, Writer
from megatron_energy.observe.timeline import TimelineSide, save_timeline, timeline_figure
from megatron_energy.observe.trace import write_trace
from megatron_energy.records.summary import IterationSummary
from megatron_energy.session.coordinator import Findings, IterationData
from megatron_energy.session.facts import JobFacts
from megatron_energy.session.options import EnergyOptions

SETTLED_AFTER = 2
"""Planned iterations before one is drawn: the first still contains the change of clocks from the phase before."""


class Reporter:
    """Collects summaries; writes at Megatron's log interval and at the end."""

    def __init__(self, options: EnergyOptions, facts: JobFacts, findings: Findings, title: str, say: Callable[[str], None]) -> None:
        self.options = options
        self.facts = facts
        self.findings = findings
        self.title = title
        self.say = say
        self.directory = options.run_dir
        self.summaries: list[IterationSummary] = []
        self._journal = Journal(self.directory)
        self._log: TensorBoardLog | None = None
        self._planned_seen = 0
        self._drawn: IterationData | None = None
        self._text_pending = False
        self._unwritable = False

    def add(self, summary: IterationSummary, data: IterationData) -> None:
        """Take in one iteration."""
        self.summaries.append(summary)
        self._writing(lambda: self._journal.append(summary))
        if self._log is not None:
            self._log.add(summary)
        if summary.phase == "planned":
            self._planned_seen += 1
            if self._planned_seen == SETTLED_AFTER:
                self._drawn = data

    def plan_made(self) -> None:
        """The plan stands: it is written down, with the profile it was made from."""
        from megatron_energy.profiles.files import save_profile

        planned, profile = self.findings.planned, self.findings.profile
        if planned is not None:
            self._writing(lambda: planned.save(self.directory / "plan.json"))
            self._text_pending = True
        if profile is not None:
            self._writing(lambda: save_profile(profile, self.directory / "profile.csv"))

    def _writing(self, write: Callable[[], None]) -> None:
        """Write into RUN_DIR; where that fails (a full disk), records end and training goes on."""
        if self._unwritable:
            return
        try:
            write()
        except (OSError, UserError) as error:
            self._unwritable = True
            self.say(f"no more records in {self.directory}: {error}")

    def write(self, step: int, writer: Writer | None) -> None:
        """At Megatron's log interval, with its TensorBoard writer (None: no TensorBoard)."""
        if writer is None:
            return
        if self._log is None:
            # Megatron writes its own two tags itself with --log-energy, which the launcher switches off on emulated GPUs.
            self._log = TensorBoardLog(writer, megatron_tags=self.options.device == "emulated" or not self.options.log_energy)
            for summary in self.summaries:
                self._log.add(summary)
        self._log.write(step)
        planned = self.findings.planned
        if self._text_pending and planned is not None:
            self._text_pending = False
            self._log.text("plan", plan_markdown(self.plan_facts(), self.planned_gpus(), emulated=self.emulated), step)
        if self._drawn is not None:
            self._draw(self._drawn, step)
            self._drawn = None

    @property
    def emulated(self) -> bool:
        """Whether the run's figures are emulated."""
        return any(s.emulated for s in self.summaries)

    def plan_facts(self) -> PlanFacts:
        """The plan's figures and the run's files."""
        planned = self.findings.planned
        timeline = self.directory / "timeline.png"
        return PlanFacts(
            policy=str(self.options.policy),
            bound_saved_percent=planned.bound_saved_percent if planned else None,
            expected_time_s=planned.expected_time_s if planned else None,
            expected_energy_j=planned.expected_energy_j if planned else None,
            switches_mean=planned.switches_mean if planned else None,
            switches_max=planned.switches_max if planned else None,
            plan_path=self.directory / "plan.json" if planned else None,
            timeline_path=timeline if timeline.exists() else None,
            tensorboard_dir=Path(self.options.tensorboard_dir) if self.options.tensorboard_dir else None,
        )

    def planned_gpus(self) -> list[PlannedGpus]:
        """The plan's segments per stage."""
        planned = self.findings.planned
        return planned.per_stage() if planned else []

    def finish(self) -> Report | None:
        """Write what is left and the end-of-run summary; None where nothing was measured."""
        if self._drawn is not None:
            self._draw(self._drawn, None)
        self._writing(self._journal.close)
        if not self.summaries:
            return None
        report = build_report(self._reported(), self.plan_facts())
        self._writing(lambda: report.save(self.directory / "summary.json"))
        self._finish_tensorboard(report)
        return report

    def _finish_tensorboard(self, report: Report) -> None:
        """The run's row of TensorBoard's HPARAMS page."""
        if self._log is None:
            return
        settings: dict[str, str | float | bool] = {
            "policy": str(self.options.policy),
            "slowdown": self.options.slowdown,
            "max-switches": self.options.max_switches,
        }
        figures = {"saved-percent": report.total.saved_percent, "slowdown-percent": report.slowdown_percent}
        log, known = self._log, {name: value for name, value in figures.items() if value is not None}
        self._writing(lambda: log.finish(settings, known))

    def _reported(self) -> list[IterationSummary]:
        """Without iterations that contain what came before them: the first, the first planned one, those right after an evaluation."""
        skipped = {self.summaries[0].iteration}
        if self._planned_seen > 1:
            skipped.add(next(s.iteration for s in self.summaries if s.phase == "planned"))
        for before, s in itertools.pairwise(self.summaries):
            if before.phase == "evaluation" and s.phase in ("baseline", "planned"):
                skipped.add(s.iteration)
        return [s for s in self.summaries if s.iteration not in skipped]

    def _draw(self, planned: IterationData, step: int | None) -> None:
        """The time line of the last baseline iteration and of one under the plan, as a picture and as a trace."""
        if not self.findings.baseline:
            return
        before = self.findings.baseline[-1]
        ranks = _drawn_ranks(self.facts)
        sides = [
            TimelineSide(name, [data.records[rank] for rank in ranks], data.energy_j, self.facts.world_size)
            for name, data in (("Baseline", before), ("Plan", planned))
        ]
        figure = timeline_figure(*sides, labels=[f"stage {stage}" for stage in range(len(ranks))], title=self.title)
        self._writing(lambda: save_timeline(figure, self.directory / "timeline.png"))
        self._writing(lambda: write_trace(self.directory / "trace.json", {"baseline": before.records, "plan": planned.records}))
        if self._log is not None and step is not None:
            self._log.figure("timeline", figure, step)


def _drawn_ranks(facts: JobFacts) -> list[int]:
    """One rank per stage, of the first replica."""
    return [facts.ranks_where(stage=s, data_rank=0, tensor_rank=0, context_rank=0)[0] for s in range(facts.any.pipeline)]
