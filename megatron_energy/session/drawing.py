"""The time line of a run: one iteration as found above one under the plan, as a picture and as a trace."""

from collections.abc import Sequence
from dataclasses import dataclass
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
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True)
class Picture:
    """What there is to draw, in plain types.

    Attributes:
        title: its heading.
        directory: where timeline.png and trace.json go.
        sides: the iteration as found, and the one under the plan; one rank per stage.
        baseline: the iteration as found, of all ranks.
        planned: the other one.
    """

    title: str
    directory: Path
    sides: tuple[TimelineSide, TimelineSide]
    baseline: Sequence[RankIteration]
    planned: Sequence[RankIteration]

    def draw(self) -> "npt.NDArray[np.uint8]":
        """Write timeline.png and trace.json: a second or two of CPU time.

        Returns:
            The picture as [height, width, red-green-blue].

        Raises:
            OSError: they cannot be written.
        """
        from matplotlib.image import imread

        labels = [f"stage {stage}" for stage in range(len(self.sides[0].rows))]
        save_timeline(timeline_figure(*self.sides, labels=labels, title=self.title), self.directory / "timeline.png")
        write_trace(self.directory / "trace.json", {"baseline": self.baseline, "plan": self.planned})
        drawn: npt.NDArray[np.uint8] = (255 * imread(self.directory / "timeline.png")[..., :3]).round().astype("uint8")
        return drawn


class Drawing:
    """Two iterations of a run, to be drawn as often as their headings change.

    Args:
        facts: the job.
        title: heading of the picture.
        counter_step_s: time between two steps of the energy counter.
    """

    def __init__(self, facts: JobFacts, title: str, counter_step_s: float) -> None:
        self._facts, self._title, self._counter_step_s = facts, title, counter_step_s

    def picture(self, directory: Path, baseline: IterationData, planned: IterationData, windows: Windows) -> Picture:
        """What is to be drawn. Times and energies in its headings are the means of ``windows``, as in the report.

        An iteration's own energy is no figure to show: a counter that steps every 100 ms may be off by a few percent of it.
        """
        ranks = _drawn_ranks(self._facts)
        before, after = (
            self._side(name, [data.records[rank] for rank in ranks], window)
            for name, data, window in (("Baseline", baseline, windows.baseline), ("Plan", planned, windows.planned))
        )
        return Picture(self._title, directory, (before, after), baseline.records, planned.records)

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


def _drawn_ranks(facts: JobFacts) -> list[int]:
    """One rank per stage, of the first replica."""
    return [facts.ranks_where(stage=s, data_rank=0, tensor_rank=0, context_rank=0)[0] for s in range(facts.any.pipeline)]
