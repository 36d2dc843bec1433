"""Drawing of one GPU's row in the time line picture."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from megatron_energy.observe.clocks import Piece, clock_pieces
from megatron_energy.records.iteration import Activity, RankIteration, Span

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable

HATCHES: dict[Activity, str] = {"backward": "//////", "grad-sync": "xxxxxx", "optimizer": "......"}
"""Kinds of work, told apart without colour: colour is for the clock alone. A forward is plain."""
WORK: tuple[Activity, ...] = ("forward", "backward", "grad-sync", "optimizer")
WAIT_COLOUR = "#e4e4e4"
OTHER_COLOUR = "#c3c3c3"
ROW_HEIGHT = 0.8
LABEL_POINTS = 7.0
CHARACTER_POINTS = 0.62 * LABEL_POINTS
"""Width of a character of the label font: 0.62 of its size, measured on DejaVu Sans' digits."""

Colour: TypeAlias = tuple[float, float, float, float]

_SHORT = {"grad-sync": "sync", "optimizer": "opt"}


def draw_row(axes: "Axes", y: float, row: RankIteration, origin_s: float, colours: "ScalarMappable", s_per_point: float) -> None:
    """Draw the spans of one GPU.

    Args:
        axes: where to.
        y: middle of the row.
        row: the GPU's iteration.
        origin_s: time that becomes 0 on the axis.
        colours: clock in MHz to colour.
        s_per_point: seconds per point (1/72 inch) of the axis: labels are left out where they do not fit.
    """
    bottom = y - ROW_HEIGHT / 2
    chunks = {span.chunk for span in row.spans if span.chunk >= 0}
    for activity in WORK:
        spans = [span for span in row.spans if span.activity == activity]
        _draw_work(axes, bottom, activity, [p for s in spans for p in clock_pieces(s, row.clock_changes)], origin_s, colours)
        _separate(axes, bottom, spans, origin_s, s_per_point)
        for span in spans:
            text = span_label(span, many_chunks=len(chunks) > 1)
            if text and (span.end_s - span.start_s) / s_per_point >= CHARACTER_POINTS * len(text) + 2:
                _write(axes, (span.start_s + span.end_s) / 2 - origin_s, y, text, colour_of(colours, span.clock_mhz))
    for plain_activity, colour in (("wait", WAIT_COLOUR), ("other", OTHER_COLOUR)):
        _draw_plain(axes, bottom, [s for s in row.spans if s.activity == plain_activity], origin_s, colour)
    _mark_throttled(axes, bottom, row.spans, origin_s)


def _draw_work(
    axes: "Axes", bottom: float, activity: Activity, pieces: Sequence[Piece], origin_s: float, colours: "ScalarMappable"
) -> None:
    """Boxes in the colour of their clock; the hatch is light on dark colours and dark on light ones."""
    for dark in (True, False):
        chosen = [(start, end, clock) for start, end, clock in pieces if is_dark(colour_of(colours, clock)) == dark]
        if not chosen:
            continue
        axes.broken_barh(
            [(start - origin_s, end - start) for start, end, _ in chosen],
            (bottom, ROW_HEIGHT),
            facecolors=[colour_of(colours, clock) for _, _, clock in chosen],
            edgecolors=(1, 1, 1, 0.5) if dark else (0, 0, 0, 0.3),
            linewidth=0,
            hatch=HATCHES.get(activity),
            gid=activity,
        )


def _separate(axes: "Axes", bottom: float, spans: Sequence[Span], origin_s: float, s_per_point: float) -> None:
    """A thin gap between neighbours; thinner where operations are only a few points wide."""
    if spans:
        narrowest = min(span.end_s - span.start_s for span in spans) / s_per_point
        axes.vlines(
            [time - origin_s for span in spans for time in (span.start_s, span.end_s)],
            bottom,
            bottom + ROW_HEIGHT,
            color="white",
            linewidth=min(0.8, narrowest / 8),
        )


def span_label(span: Span, *, many_chunks: bool) -> str:
    """What is written into a span: the microbatch, and the model chunk as a letter (a: 0) where there are several."""
    if span.activity in _SHORT:
        return _SHORT[span.activity]
    letter = chr(ord("a") + span.chunk) if many_chunks and 0 <= span.chunk < 26 else ""
    return f"{span.microbatch}{letter}" if span.microbatch >= 0 else ""


def _write(axes: "Axes", x: float, y: float, text: str, fill: Colour) -> None:
    from matplotlib.patheffects import withStroke

    axes.text(
        x,
        y,
        text,
        ha="center",
        va="center",
        fontsize=LABEL_POINTS,
        color="white" if is_dark(fill) else "black",
        path_effects=[withStroke(linewidth=3.0, foreground=fill)],  # clears the hatch around the characters
        clip_on=True,
    )


def _draw_plain(axes: "Axes", bottom: float, spans: Sequence[Span], origin_s: float, colour: str) -> None:
    if spans:
        axes.broken_barh(
            [(s.start_s - origin_s, s.end_s - s.start_s) for s in spans],
            (bottom + ROW_HEIGHT * 0.35, ROW_HEIGHT * 0.3),
            facecolors=colour,
            linewidth=0,
            gid=spans[0].activity,
        )


def _mark_throttled(axes: "Axes", bottom: float, spans: Sequence[Span], origin_s: float) -> None:
    """A red line under what ran below the requested clock at any time, since colour alone would not tell; records know no better when."""
    held = [(s.start_s - origin_s, s.end_s - s.start_s) for s in spans if s.throttled]
    if held:
        axes.broken_barh(held, (bottom + ROW_HEIGHT, 0.08), facecolors="#d62728", linewidth=0, gid="throttled")


def colour_of(colours: "ScalarMappable", clock_mhz: float) -> Colour:
    """Red, green, blue and alpha of a clock."""
    red, green, blue, alpha = colours.to_rgba(np.array([clock_mhz]))[0]
    return float(red), float(green), float(blue), float(alpha)


def is_dark(colour: Colour) -> bool:
    """Whether white reads better on it than black: relative luminance without gamma, weights of ITU-R BT.709."""
    return 0.2126 * colour[0] + 0.7152 * colour[1] + 0.0722 * colour[2] < 0.5
