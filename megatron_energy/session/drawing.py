"""The time line of a run: one iteration as found above one under the plan, as a picture and as a trace."""

from pathlib import Path
from typing import TYPE_CHECKING

from megatron_energy.observe.interval import Interval
from megatron_energy.observe.phases import Windows
from megatron_energy.observe.resolution import resolution_percent
from megatron_energy.observe.timeline import TimelineSide, save_timeline, timeline_figure
from megatron_energy.observe.trace import write_trace
from megatron_energy.records.iteration import RankIteration
from megatron_energy.session.facts import JobFacts
from megatron_energy.session.findings import IterationData

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Drawing:
    """Two iterations of a run, to be drawn as often as their headings change.

    Args:
        facts: the job.
        title: heading of the picture.
        counter_step_s: time between two steps of the energy counter.
    """

    def __init__(self, facts: JobFacts, title: str, counter_step_s: float) -> None:
        self._facts, self._title, self._counter_step_s = facts, title, counter_step_s

    def figure(self, baseline: IterationData, planned: IterationData, windows: Windows) -> "Figure":
        """The picture. Times and energies in its headings are the means of ``windows``, as in the report.

        An iteration's own energy is no figure to show: a counter that steps every 100 ms may be off by a few percent of it.
        """
        ranks = _drawn_ranks(self._facts)
        sides = [
            self._side(name, [data.records[rank] for rank in ranks], window)
            for name, data, window in (("Baseline", baseline, windows.baseline), ("Plan", planned, windows.planned))
        ]
        return timeline_figure(*sides, labels=[f"stage {stage}" for stage in range(len(ranks))], title=self._title)

    def _side(self, name: str, rows: list[RankIteration], window: Interval | None) -> TimelineSide:
        if window is None:
            return TimelineSide(name, rows)
        return TimelineSide(
            name,
            rows,
            energy_j=window.iteration_energy_j,
            gpus=len(window.gpus),
            mean_s=window.time_s,
            iterations=window.iterations,
            resolution_percent=resolution_percent(window, self._counter_step_s),
        )

    def save(self, figure: "Figure", directory: Path, baseline: IterationData, planned: IterationData) -> None:
        """Write timeline.png and trace.json.

        Raises:
            OSError: they cannot be written.
        """
        save_timeline(figure, directory / "timeline.png")
        write_trace(directory / "trace.json", {"baseline": baseline.records, "plan": planned.records})


def _drawn_ranks(facts: JobFacts) -> list[int]:
    """One rank per stage, of the first replica."""
    return [facts.ranks_where(stage=s, data_rank=0, tensor_rank=0, context_rank=0)[0] for s in range(facts.any.pipeline)]
