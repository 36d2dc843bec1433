"""A run phase by phase, without what only shows the change from one phase to the next."""

from dataclasses import dataclass

from megatron_energy.observe.interval import Interval, Totals
from megatron_energy.records.summary import IterationSummary, Phase


@dataclass(frozen=True)
class Windows:
    """What a report compares; None where there was no such iteration.

    Attributes:
        baseline: clocks as found, before anything was planned.
        planned: under a plan.
        untouched: clocks as found, after a plan was made that is not run (a dry run).
        sweep: at one clock after the other, to learn the profile. All of its iterations.
        left_out: iterations that are in none of them.
        baseline_windows: how many windows the baseline is made of; several where it was measured again during the run.
        drift_percent: by how much the baseline's time changed from the first to the last; None: one window.
    """

    baseline: Interval | None = None
    planned: Interval | None = None
    untouched: Interval | None = None
    sweep: Interval | None = None
    left_out: int = 0
    baseline_windows: int = 1
    drift_percent: float | None = None


class Phases:
    """Running sums of a run by phase.

    Left out are the run's first iteration (start-up), the first after a change of phase that changes clocks (it still begins at
    the old ones), and those right after an evaluation. Where a phase has no others, they count after all; the run's first never does.

    Attributes:
        iterations: training iterations so far.
        emulated: any of them, or an evaluation, ran on emulated GPUs.

    Args:
        planless: no plan is made in this run, so that every iteration with untouched clocks is as good as the baseline's.
    """

    def __init__(self, *, planless: bool = False) -> None:
        self._planless = planless
        self._settled: dict[Phase, Totals] = {}
        self._unsettled: dict[Phase, Totals] = {}
        self._before: Phase | None = None
        self.iterations = 0
        self.emulated = False

    def add(self, summary: IterationSummary) -> bool:
        """Take in one iteration or evaluation, in the order they ran; whether it is a settled training iteration."""
        self.emulated = self.emulated or summary.emulated
        before, self._before = self._before, summary.phase
        if summary.phase == "evaluation":
            return False
        self.iterations += 1
        if self.iterations == 1:
            return False
        phase: Phase = "baseline" if self._planless and summary.phase == "measure" else summary.phase
        settled = phase == "sweep" or before == summary.phase or (self._planless and before in ("baseline", "measure"))
        sums = self._settled if settled else self._unsettled
        sums.setdefault(phase, Totals()).add(summary)
        return settled

    def windows(self) -> Windows:
        """What there is to compare."""
        windows = [self._window(phase) for phase in ("baseline", "planned", "measure", "sweep")]
        left_out = self.iterations - sum(w.iterations for w in windows if w is not None)
        baseline, planned, untouched, sweep = windows
        if baseline is None and planned is None:
            baseline, untouched = untouched, None  # a plan was asked for, but the GPUs could only be measured
        return Windows(baseline, planned, untouched, sweep, left_out)

    def _window(self, phase: Phase) -> Interval | None:
        totals = self._settled.get(phase) or self._unsettled.get(phase)
        return totals.interval() if totals else None
