"""The picture of one iteration: the pipeline's stages over time, coloured by SM clock, baseline above plan."""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from megatron_energy.atomic import write_whole
from megatron_energy.observe.clocks import clock_pieces, iteration_window
from megatron_energy.observe.figures import figure
from megatron_energy.observe.timeline_rows import HATCHES, OTHER_COLOUR, ROW_HEIGHT, WAIT_COLOUR, WORK, draw_row
from megatron_energy.records.iteration import RankIteration

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

WIDTH_INCHES = 16.0
DOTS_PER_INCH = 100
ROW_INCHES = 0.36
LEFT, RIGHT = 0.06, 0.91  # of the width: room for row labels and for the colour bar
POINTS_PER_INCH = 72
COLOUR_RANGE = (0.12, 0.8)
COLOUR_MAP = "magma_r"  # perceptually uniform, and safe for colour-blind readers


@dataclass(frozen=True)
class TimelineSide:
    """One iteration to draw.

    Attributes:
        name: heading, such as ``Baseline`` or ``Plan``.
        rows: one rank per stage, first stage first.
        energy_j: J of all GPUs per iteration; None: only the rows drawn are added up, and the heading says so.
        gpus: number of GPUs behind ``energy_j``.
        mean_s: iteration time, as a mean of the same iterations as ``energy_j``; None: the drawn one's.
        iterations: so many iterations are behind ``energy_j`` and ``mean_s``: the counter's steps are too coarse for one.
        resolution_percent: how far ``energy_j`` may be off, by the counter's steps; None: not known.
    """

    name: str
    rows: Sequence[RankIteration]
    energy_j: float | None = None
    gpus: int | None = None
    mean_s: float | None = None
    iterations: int = 1
    resolution_percent: float | None = None

    @property
    def heading_s(self) -> float:
        """Iteration time in the heading."""
        return self.time_s if self.mean_s is None else self.mean_s

    @property
    def time_s(self) -> float:
        """From the first begin to the last end of its rows."""
        start_s, end_s = iteration_window(self.rows)
        return end_s - start_s

    @property
    def total_j(self) -> float:
        """Energy in the heading."""
        return math.fsum(row.energy_j for row in self.rows) if self.energy_j is None else self.energy_j

    @property
    def emulated(self) -> bool:
        """Any of its rows was emulated."""
        return any(row.emulated for row in self.rows)


def timeline_figure(
    baseline: TimelineSide, plan: TimelineSide | None = None, *, labels: Sequence[str] | None = None, title: str = ""
) -> "Figure":
    """Draw one iteration as found and, below it on the same time axis, one under the plan.

    Args:
        baseline: the iteration above.
        plan: the iteration below; None draws the baseline alone.
        labels: of the rows; default: their ranks.
        title: heading of the whole picture, such as the model's and the GPU's name.

    Returns:
        A figure 1600 pixels wide that belongs to no pyplot state.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    sides = [baseline] if plan is None else [baseline, plan]
    horizon_s = max(side.time_s for side in sides)
    rows = [len(side.rows) for side in sides]
    top, bottom, gap = (0.75 if title else 0.4), 0.95, 0.6
    height = top + bottom + gap * (len(sides) - 1) + ROW_INCHES * sum(rows)
    figure = Figure(figsize=(WIDTH_INCHES, height), dpi=DOTS_PER_INCH)
    FigureCanvasAgg(figure)
    colours = clock_colours(sides)
    y = height - top
    for side, count in zip(sides, rows, strict=True):
        panel = ROW_INCHES * count
        axes = figure.add_axes((LEFT, (y - panel) / height, RIGHT - LEFT, panel / height))
        with rc_context({"hatch.linewidth": 0.6}):
            _draw_side(axes, side, baseline, labels, horizon_s, colours, last=side is sides[-1])
        y -= panel + gap
    if title:
        emulated = " (emulated)" if any(side.emulated for side in sides) else ""
        figure.text(LEFT, 1 - 0.12 / height, title + emulated, fontsize=13, fontweight="bold", va="top")
    bar = figure.add_axes((RIGHT + 0.012, bottom / height, 0.012, 1 - (top + bottom) / height))
    figure.colorbar(colours, cax=bar, label="SM clock, MHz").outline.set_visible(False)
    _legend(figure, sides, height)
    return figure


def save_timeline(figure: "Figure", path: str | Path) -> None:
    """Write the figure as PNG, 1600 pixels wide."""
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=DOTS_PER_INCH)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, png.getvalue())


def clock_colours(sides: Sequence[TimelineSide]) -> "ScalarMappable":
    """One scale for all sides, from the lowest to the highest clock at which anything was computed."""
    import numpy as np
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    clocks = [
        clock
        for side in sides
        for row in side.rows
        for span in row.spans
        if span.activity in WORK
        for _, _, clock in clock_pieces(span, row.clock_changes)
    ] or [0.0]
    lowest, highest = min(clocks), max(clocks)
    if highest - lowest < 1:  # a single clock still needs a scale; it shall look like a high one
        lowest = highest - 100
    scale = LinearSegmentedColormap.from_list("sm-clock", colormaps[COLOUR_MAP](np.linspace(*COLOUR_RANGE, 256)))
    return ScalarMappable(Normalize(lowest, highest), scale)


def heading(side: TimelineSide, baseline: TimelineSide) -> str:
    """Name, time and energy of a side, and what it changes against the baseline."""
    scope = f"{side.gpus} GPUs" if side.energy_j is not None and side.gpus else f"the {len(side.rows)} GPUs shown"
    if side.iterations > 1:
        scope += f", mean of {side.iterations} iterations"
    emulated = " (emulated)" if side.emulated else ""
    text = f"{side.name}{emulated}:  {side.heading_s:.3f} s,  {figure(side.total_j, ',.0f')} J ({scope})"
    if side is baseline or not baseline.total_j or not baseline.heading_s:
        return text
    slowdown = figure(100 * (side.heading_s / baseline.heading_s - 1), "+.2f", "%")
    return f"{text},  {_saved(side, baseline)},  {slowdown} time"


def _saved(side: TimelineSide, baseline: TimelineSide) -> str:
    saved = 100 * (1 - side.total_j / baseline.total_j)
    if side.resolution_percent is None or baseline.resolution_percent is None:
        return f"{figure(saved, '.2f', '%')} saved"
    resolution = side.resolution_percent + baseline.resolution_percent
    if abs(saved) < resolution:
        return f"saving not told apart by the counter (±{resolution:.2g}%)"
    return f"{figure(saved, '.2f', '%')} (±{resolution:.2g}) saved"


def _draw_side(
    axes: "Axes",
    side: TimelineSide,
    baseline: TimelineSide,
    labels: Sequence[str] | None,
    horizon_s: float,
    colours: "ScalarMappable",
    *,
    last: bool,
) -> None:
    origin_s, _ = iteration_window(side.rows)
    s_per_point = horizon_s / (WIDTH_INCHES * (RIGHT - LEFT) * POINTS_PER_INCH)
    for y, row in enumerate(side.rows):
        draw_row(axes, y, row, origin_s, colours, s_per_point)
    axes.set_xlim(0, horizon_s * 1.004)
    axes.set_ylim(len(side.rows) - 1 + ROW_HEIGHT / 2 + 0.1, -ROW_HEIGHT / 2 - 0.1)
    axes.set_yticks(range(len(side.rows)), labels or [f"rank {row.rank}" for row in side.rows], fontsize=9)
    axes.set_title(heading(side, baseline), loc="left", fontsize=11)
    axes.axvline(baseline.time_s, color="black", linewidth=0.8, linestyle=(0, (4, 3)), gid="baseline-end")
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelbottom=last, labelsize=9)
    axes.spines[["top", "right", "left"]].set_visible(False)
    if last:
        axes.set_xlabel("time in the iteration, s", fontsize=9)


def _legend(figure: "Figure", sides: Sequence[TimelineSide], height: float) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    shown = {span.activity for side in sides for row in side.rows for span in row.spans}
    grey = "#7a7a7a"
    handles: list[Artist] = [
        Patch(facecolor=grey, edgecolor="white", linewidth=0.4, hatch=HATCHES.get(activity), label=activity)
        for activity in WORK
        if activity in shown
    ]
    if "wait" in shown:
        handles.append(Patch(facecolor=WAIT_COLOUR, label="waits in communication"))
    if "other" in shown:
        handles.append(Patch(facecolor=OTHER_COLOUR, label="other"))
    if any(span.throttled for side in sides for row in side.rows for span in row.spans):
        handles.append(Line2D([], [], color="#d62728", linewidth=2, label="held below the requested clock, at least in part"))
    handles.append(Line2D([], [], color="black", linewidth=0.8, linestyle=(0, (4, 3)), label="end of the baseline iteration"))
    figure.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(LEFT, 0.08 / height),
        ncols=len(handles),
        frameon=False,
        fontsize=9,
        handlelength=1.8,
        borderaxespad=0,
    )
    if not any(axes.texts for axes in figure.axes):
        return
    letters = any(span.chunk > 0 for side in sides for row in side.rows for span in row.spans)
    numbers = "number: microbatch" + (", letter: model chunk (a is the first)" if letters else "")
    figure.text(RIGHT, 0.5 / height, numbers, ha="right", va="center", fontsize=9)
