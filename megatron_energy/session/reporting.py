"""Everything that a run leaves behind for people: journal, TensorBoard, time line, report. On the home rank only."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from megatron_energy.errors import UserError
from megatron_energy.observe.baseline import against_interpolated
from megatron_energy.observe.facts import PlanFacts
from megatron_energy.observe.interval import Totals
from megatron_energy.observe.journal import Journal
from megatron_energy.observe.phases import Phases, Windows
from megatron_energy.observe.plan_text import PlannedGpus, plan_markdown
from megatron_energy.observe.report import Report, build_report
from megatron_energy.observe.report_table import print_report
from megatron_energy.observe.resolution import COUNTER_STEP_S
from megatron_energy.observe.run_directory import RunLock, plan_of, set_aside
from megatron_energy.observe.tensorboard import TensorBoardLog, Writer
from megatron_energy.records.summary import IterationSummary
from megatron_energy.session.defects import end_all
from megatron_energy.session.drawing import Drawing
from megatron_energy.session.drawn_aside import DrawnAside
from megatron_energy.session.facts import JobFacts
from megatron_energy.session.findings import Findings, IterationData
from megatron_energy.session.options import UNPLANNED, EnergyOptions

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

TOO_SMALL = "The emulated GPUs run the model in training, which is too small to measure: name a larger one with --energy-emulated-model."
TOO_FEW = "Train more iterations."


class Reporter:
    """Takes in summaries; writes at Megatron's log interval and at the end. Keeps sums, not iterations: a run may be long.

    Args:
        options: what the user asked for.
        facts: the job.
        findings: of its course.
        title: of the time line.
        say: prints one line for the user.
        counter_step_s: time between two steps of the GPUs' energy counter.
        aside: the time line is drawn while training goes on, not before :meth:`write` returns.

    Raises:
        UserError: RUN_DIR is in use by another run, or what an earlier one left in it cannot be set aside.
    """

    def __init__(
        self,
        options: EnergyOptions,
        facts: JobFacts,
        findings: Findings,
        title: str,
        say: Callable[[str], None],
        counter_step_s: float = COUNTER_STEP_S,
        aside: bool = False,
    ) -> None:
        self.options = options
        self.findings = findings
        self.say = say
        self.directory = options.run_dir
        self._counter_step_s = counter_step_s
        self._lock = RunLock(self.directory, say)
        self._set_aside()
        self._journal = Journal(self.directory)
        self._phases = Phases(planless=options.policy in UNPLANNED)
        self._log: TensorBoardLog | None = None
        self._pending = Totals()  # for TensorBoard, while there is no writer
        self._last_step = 0
        self._drawing = Drawing(facts, title, counter_step_s)
        self._aside = DrawnAside(say) if aside else None
        self._drawn: IterationData | None = None
        self._iterations_drawn = 0  # behind the heading of the last picture
        self._text_pending = False
        self._unwritable = False
        self._plan_written = self._timeline_written = False
        self._planned_microbatches = 0
        self._microbatches: int | None = None  # of the iterations that the report is about, where there were others

    def _set_aside(self) -> None:
        o = self.options
        aside = set_aside(self.directory, [path for path in (o.plan, o.profile, o.emulated_model) if path is not None])
        if aside is not None:
            self.say(f"records of an earlier run in {self.directory} are now in {aside}")

    def add(self, summary: IterationSummary, data: IterationData) -> None:
        """Take in one iteration."""
        settled = self._phases.add(summary)
        self.findings.windows.add(summary)
        self._writing(lambda: self._journal.append(summary))
        if self._log is not None:
            self._log.add(summary)
        else:
            self._pending.add(summary)
        # A phase begins with the clocks of the one before; later records of a long run may be without spans.
        if self._drawn is None and settled and summary.phase == "planned" and any(r.spans for r in data.records):
            self._drawn = data

    def start_over(self, microbatches: int) -> None:
        """Iterations have another number of microbatches from here on: the report and the picture are about these. Records go on."""
        self._keep_plan()
        self._microbatches, self._drawn, self._iterations_drawn = microbatches, None, 0
        before, self._phases = self._phases, Phases(planless=self.options.policy in UNPLANNED)
        self._phases.emulated = before.emulated

    def _keep_plan(self) -> None:
        """The plan for the former number, which the next one will not replace."""
        if self._plan_written:
            kept = self.directory / plan_of(self._planned_microbatches)
            self._writing(lambda: os.replace(self.directory / "plan.json", kept))
            self._plan_written = False

    def plan_made(self) -> None:
        """The plan stands: it is written down, with the profile it was made from."""
        from megatron_energy.profiles.files import save_profile

        planned, profile = self.findings.planned, self.findings.profile
        if planned is not None:
            self._plan_written = self._writing(lambda: planned.save(self.directory / "plan.json"))
            self._planned_microbatches = planned.plan.schedule.microbatches
            self._text_pending = True
        if profile is not None:
            self._writing(lambda: save_profile(profile, self.directory / "profile.csv"))

    def _writing(self, write: Callable[[], None]) -> bool:
        """Write into RUN_DIR; where that fails (a full disk), records end and training goes on. Whether it was written."""
        if self._unwritable:
            return False
        try:
            write()
        except (OSError, UserError) as error:
            self._unwritable = True
            self.say(f"no more records in {self.directory}: {error}")
        return not self._unwritable

    def write(self, step: int, writer: Writer | None) -> None:
        """At Megatron's log interval, with its TensorBoard writer (None: no TensorBoard)."""
        if writer is None:
            return
        if self._log is None:
            # Megatron writes its own two tags itself with --log-energy, which the launcher switches off on emulated GPUs.
            megatron_tags = self.options.device == "emulated" or not self.options.log_energy
            self._log, self._pending = TensorBoardLog(writer, megatron_tags=megatron_tags, pending=self._pending), Totals()
        self._log.write(step)
        self._last_step = step
        if self._text_pending and self.findings.planned is not None:
            self._text_pending = False
            self._log.text("plan", plan_markdown(self.plan_facts(), self.planned_gpus(), emulated=self.emulated), step)
        if not self._iterations_drawn:
            self._draw()
        self._show_drawn()

    @property
    def emulated(self) -> bool:
        """Whether the run's figures are emulated."""
        return self._phases.emulated

    @property
    def policy(self) -> str:
        """Of the plan in force; what was asked for where there is none, or where nothing is requested."""
        planned = self.findings.planned
        return str(self.options.policy) if planned is None or self.options.policy == "dry-run" else planned.plan.policy

    def plan_facts(self) -> PlanFacts:
        """The plan's figures, and the files that this run has written."""
        planned, o = self.findings.planned, self.options
        expected = planned.plan.expected if planned else None
        return PlanFacts(
            policy=self.policy,
            bound_saved_percent=planned.bound_saved_percent if planned else None,
            expected_time_s=planned.expected_time_s if planned else None,
            expected_energy_j=planned.expected_energy_j if planned else None,
            switches_mean=planned.switches_mean if planned else None,
            switches_max=planned.switches_max if planned else None,
            plan_path=self.directory / "plan.json" if self._plan_written else None,
            timeline_path=self.directory / "timeline.png" if self._timeline_written else None,
            tensorboard_dir=Path(o.tensorboard_dir) if o.tensorboard_dir else None,
            plan_policy=planned.plan.policy if planned else None,
            expected_saved_percent=expected.saved_percent if expected else None,
            expected_slowdown_percent=expected.slowdown_percent if expected else None,
            off_reason=None if o.policy in UNPLANNED else self.findings.off_reason,
            counter_step_s=self._counter_step_s,
            microbatches=self._microbatches,
            too_short=TOO_SMALL if o.device == "emulated" and o.emulated_model is None else TOO_FEW,
        )

    def planned_gpus(self) -> list[PlannedGpus]:
        """The plan's segments per stage."""
        planned = self.findings.planned
        return planned.per_stage() if planned else []

    def finish(self) -> Report | None:
        """Write what is left and the end-of-run summary, and let RUN_DIR go; None where nothing ran."""
        self._draw()
        if self._aside is not None:
            self._aside.finish()
            self._show_drawn()
        self._writing(self._journal.close)
        report = None
        if self._phases.iterations:
            report = build_report(self._windows(), self.plan_facts())
            summary = report
            self._writing(lambda: summary.save(self.directory / "summary.json"))
            end_all([("not all is in TensorBoard", lambda: self._finish_tensorboard(summary))], self.say, self.directory)
        self._lock.release()
        return report

    def _windows(self) -> Windows:
        """What there is to compare, with the baseline between its windows where it was measured several times."""
        return against_interpolated(self._phases.windows(), self.findings.windows.interpolated())

    def _finish_tensorboard(self, report: Report) -> None:
        """The run's row of TensorBoard's HPARAMS page."""
        if self._log is None:
            return
        made_with = self.findings.planned.plan if self.findings.planned is not None else self.options
        settings: dict[str, str | float | bool] = {
            "policy": self.policy,
            "slowdown": made_with.slowdown,
            "max-switches": made_with.max_switches,
        }
        saved = report.total.saved_percent if report.saving_is_resolved else None  # noise is no result
        figures = {"saved-percent": saved, "slowdown-percent": report.slowdown_percent}
        log, known = self._log, {name: value for name, value in figures.items() if value is not None}
        self._writing(lambda: log.finish(settings, known))

    def _draw(self) -> None:
        """The time line of the last baseline iteration and of one under the plan, where its heading has become better."""
        if self._drawn is None or not self.findings.baseline:
            return
        windows = self._windows()
        iterations = windows.planned.iterations if windows.planned is not None else 0
        if iterations <= self._iterations_drawn:
            return
        self._iterations_drawn = iterations
        picture = self._drawing.picture(self.directory, self.findings.baseline[-1], self._drawn, windows)
        if self._aside is None:
            self._writing(lambda: self._show(picture.draw()))
        elif not self._unwritable:
            self._aside.begin(picture)

    def _show_drawn(self) -> None:
        """What was drawn aside since the last time."""
        for image in self._aside.drawn() if self._aside is not None else []:
            self._show(image)

    def _show(self, image: "npt.NDArray[np.uint8]") -> None:
        self._timeline_written = True
        if self._log is not None:
            self._log.image("timeline", image, self._last_step)


def show(report: Report | None) -> None:
    """Print the report, where anything ran."""
    if report is not None:
        print_report(report)
