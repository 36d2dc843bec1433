"""The picture, by its artists: where the boxes are, their colours, and what is written."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatron_energy.observe.clocks import clock_pieces
from megatron_energy.observe.timeline import TimelineSide, clock_colours, heading, save_timeline, timeline_figure
from megatron_energy.observe.timeline_rows import span_label
from megatron_energy.records.iteration import RankIteration, Span
from tests.observe.sample_records import pipeline_iteration, three_segments


def boxes(axes: Any, kind: str) -> list[tuple[float, float, float, float]]:
    """(left, right, bottom, top) of the boxes of one kind, in the order of time."""
    found = []
    for collection in axes.collections:
        if collection.get_gid() == kind:
            for path in collection.get_paths():
                x, y = path.vertices[:, 0], path.vertices[:, 1]
                found.append((float(x.min()), float(x.max()), float(y.min()), float(y.max())))
    return sorted(found, key=lambda box: (box[2], box[0]))


def one_rank(*spans: Span, changes: list[tuple[float, int]] | None = None, **fields: Any) -> RankIteration:
    return RankIteration(0, 1, spans[0].start_s, spans[-1].end_s, 100.0, list(spans), changes or [], **fields)


def test_boxes_stand_where_the_operations_were() -> None:
    row = one_rank(
        Span("forward", 0, 0, 10.0, 11.0, 1410),
        Span("wait", -1, -1, 11.0, 11.5, 1410),
        Span("backward", 0, 0, 11.5, 13.5, 1200),
        Span("grad-sync", -1, -1, 13.5, 14.0, 1410),
        Span("optimizer", -1, -1, 14.0, 14.25, 1410),
    )
    figure = timeline_figure(TimelineSide("Baseline", [row]))
    axes = figure.axes[0]
    assert boxes(axes, "forward") == [pytest.approx((0.0, 1.0, -0.4, 0.4))]
    assert boxes(axes, "backward") == [pytest.approx((1.5, 3.5, -0.4, 0.4))]
    assert boxes(axes, "grad-sync")[0][:2] == pytest.approx((3.5, 4.0))
    assert boxes(axes, "optimizer")[0][:2] == pytest.approx((4.0, 4.25))
    assert boxes(axes, "wait")[0][:2] == pytest.approx((1.0, 1.5))
    hatches = {c.get_gid(): c.get_hatch() for c in axes.collections if c.get_gid()}
    assert hatches["forward"] is None
    assert len({hatches[kind] for kind in ("backward", "grad-sync", "optimizer")} - {None}) == 3


def test_colour_is_the_clock_on_one_scale_for_both_sides() -> None:
    baseline = TimelineSide("Baseline", [one_rank(Span("forward", 0, 0, 0.0, 1.0, 1410))])
    plan = TimelineSide("Plan", [one_rank(Span("forward", 0, 0, 0.0, 1.2, 1110), Span("forward", 0, 1, 1.2, 2.4, 1410))])
    figure = timeline_figure(baseline, plan)
    colours = clock_colours([baseline, plan])
    assert (colours.norm.vmin, colours.norm.vmax) == (1110, 1410)
    face = [
        tuple(colour)
        for axes in figure.axes[:2]
        for c in axes.collections
        if c.get_gid() == "forward"
        for colour in np.atleast_2d(c.get_facecolor())
    ]
    low, high = (tuple(colours.to_rgba(np.array([clock]))[0]) for clock in (1110.0, 1410.0))
    assert sorted(face) == sorted([high, low, high])


def test_an_operation_is_split_where_its_clock_changed() -> None:
    changes = [(0.0, 1410), (1.5, 1200), (1.75, 1410), (9.0, 900)]
    span = Span("backward", 0, 0, 1.0, 2.0, 1357.5, steady_clock=False)
    assert clock_pieces(span, changes) == [(1.0, 1.5, 1410.0), (1.5, 1.75, 1200.0), (1.75, 2.0, 1410.0)]
    assert clock_pieces(replace(span, clock_mhz=1200.0), [(0.0, 1200), (1.5, 1200)]) == [(1.0, 2.0, 1200.0)]
    assert clock_pieces(span, []) == [(1.0, 2.0, 1357.5)]
    assert clock_pieces(span, [(1.5, 1200)]) == [(1.0, 2.0, 1357.5)]  # the clock before is not known
    figure = timeline_figure(TimelineSide("Plan", [one_rank(span, changes=changes)]))
    assert [box[:2] for box in boxes(figure.axes[0], "backward")] == [(0.0, 0.5), (0.5, 0.75), (0.75, 1.0)]


def test_baseline_stands_above_the_plan_on_the_same_time_axis() -> None:
    baseline = TimelineSide("Baseline", pipeline_iteration())
    plan = TimelineSide("Plan", pipeline_iteration(three_segments, start_s=5.0))
    upper, lower, _ = timeline_figure(baseline, plan, labels=[f"stage {s}" for s in range(4)]).axes
    assert upper.get_xlim() == lower.get_xlim()
    assert upper.get_position().y0 > lower.get_position().y1
    assert [label.get_text() for label in lower.get_yticklabels()] == ["stage 0", "stage 1", "stage 2", "stage 3"]
    end = [line.get_xdata()[0] for axes in (upper, lower) for line in axes.lines if line.get_gid() == "baseline-end"]  # type: ignore[index]
    assert end == pytest.approx([baseline.time_s, baseline.time_s])
    assert min(box[0] for box in boxes(lower, "forward")) == pytest.approx(0.0)


def test_headings_give_totals_and_changes() -> None:
    baseline = TimelineSide("Baseline", pipeline_iteration(), energy_j=10_000.0, gpus=16)
    plan = replace(baseline, name="Plan", energy_j=8_500.0)
    assert heading(baseline, baseline) == f"Baseline (emulated):  {baseline.time_s:.3f} s,  10,000 J (16 GPUs)"
    assert heading(plan, baseline).endswith("8,500 J (16 GPUs),  15.00% saved,  +0.00% time")
    real = TimelineSide("Plan", [replace(row, emulated=False) for row in pipeline_iteration()])
    assert "emulated" not in heading(real, real)
    assert "(the 4 GPUs shown)" in heading(real, real)


def test_headings_give_the_means_that_the_report_gives() -> None:
    rows = pipeline_iteration()
    baseline = TimelineSide("Baseline", rows, 10_000.0, 16, mean_s=2.0, iterations=3, resolution_percent=1.5)
    plan = TimelineSide("Plan", rows, 8_500.0, 16, mean_s=1.99999, iterations=20, resolution_percent=0.25)
    assert heading(baseline, baseline) == "Baseline (emulated):  2.000 s,  10,000 J (16 GPUs, mean of 3 iterations)"
    expected = "Plan (emulated):  2.000 s,  8,500 J (16 GPUs, mean of 20 iterations),  15.00% (±1.8) saved,  +0.00% time"
    assert heading(plan, baseline) == expected
    assert "saving not told apart by the counter (±1.8%)" in heading(replace(plan, energy_j=9_900.0), baseline)


def test_labels_are_microbatch_and_chunk_and_only_where_they_fit() -> None:
    assert span_label(Span("forward", 0, 3, 0, 1, 1410), many_chunks=False) == "3"
    assert span_label(Span("backward", 1, 12, 0, 1, 1410), many_chunks=True) == "12b"
    assert span_label(Span("grad-sync", -1, -1, 0, 1, 1410), many_chunks=True) == "sync"
    wide, narrow = Span("forward", 0, 1, 0.0, 1.0, 1410), Span("forward", 0, 2, 1.0, 1.001, 1410)
    texts = [t.get_text() for t in timeline_figure(TimelineSide("Baseline", [one_rank(wide, narrow)])).axes[0].texts]
    assert texts == ["1"]


def test_throttled_work_is_underlined() -> None:
    row = one_rank(Span("forward", 0, 0, 0.0, 1.0, 1410), Span("forward", 0, 1, 1.0, 2.0, 1300, throttled=True))
    figure = timeline_figure(TimelineSide("Plan", [row]))
    assert [box[:2] for box in boxes(figure.axes[0], "throttled")] == [(1.0, 2.0)]
    assert "held below the requested clock, at least in part" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_the_file_is_1600_pixels_wide(tmp_path: Path) -> None:
    save_timeline(timeline_figure(TimelineSide("Baseline", pipeline_iteration(chunks=2)), title="a model"), tmp_path / "a" / "timeline.png")
    header = (tmp_path / "a" / "timeline.png").read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(header[16:20], "big") == 1600
