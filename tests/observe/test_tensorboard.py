"""What arrives in TensorBoard: read back from a real log, and through a writer that only remembers."""

import math
import random
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megatron_energy.observe.places import place_of
from megatron_energy.observe.tags import GPU_MEASURES, JOB_MEASURES, MEGATRON_ENERGY, MEGATRON_POWER, Tags
from megatron_energy.observe.tensorboard import TensorBoardLog
from megatron_energy.records.summary import IterationSummary
from tests.observe.sample_records import run_summaries


class MemoryWriter:
    """A SummaryWriter that keeps what it is given."""

    def __init__(self) -> None:
        self.scalars: dict[str, dict[int, float]] = defaultdict(dict)
        self.texts: dict[str, str] = {}
        self.layouts: list[dict[str, dict[str, Any]]] = []
        self.hparams: list[tuple[dict[str, Any], dict[str, Any], str]] = []
        self.flushed = 0

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        assert global_step not in self.scalars[tag], f"{tag} is written twice at {global_step}"
        self.scalars[tag][global_step] = scalar_value

    def add_text(self, tag: str, text_string: str, global_step: int) -> None:
        self.texts[tag] = text_string

    def add_image(self, tag: str, img_tensor: Any, global_step: int, *, dataformats: str) -> None:
        self.texts[tag] = f"picture at {global_step}"

    def add_custom_scalars(self, layout: dict[str, dict[str, Any]]) -> None:
        self.layouts.append(layout)

    def add_hparams(self, hparam_dict: dict[str, Any], metric_dict: dict[str, Any], *, run_name: str) -> None:
        self.hparams.append((hparam_dict, metric_dict, run_name))

    def flush(self) -> None:
        self.flushed += 1


def logged(summaries: list[IterationSummary], every: int = 1, **options: Any) -> MemoryWriter:
    writer = MemoryWriter()
    log = TensorBoardLog(writer, **options)
    for summary in summaries:
        log.add(summary)
        if summary.iteration % every == 0 and summary.phase != "evaluation":
            log.write(summary.iteration)
    return writer


def with_counters(iterations: int) -> tuple[list[IterationSummary], dict[int, list[int]]]:
    """Iterations whose energies are differences of integer mJ counters; every fourth is followed by an evaluation."""
    noise = random.Random(3)
    counters = [noise.randrange(10**9) for _ in range(16)]
    readings = {0: list(counters)}
    summaries = []
    for template in run_summaries(0, iterations):
        evaluation = replace(template, phase="evaluation", gpus=[replace(g) for g in template.gpus])
        for summary in (evaluation, template) if template.iteration % 4 == 0 else (template,):
            for rank, gpu in enumerate(sorted(summary.gpus, key=lambda g: (g.node, g.gpu))):
                used_mj = noise.randrange(400_000, 600_000)
                counters[rank] += used_mj
                gpu.energy_j = used_mj / 1000
            summaries.append(summary)
        readings[template.iteration] = list(counters)
    return summaries, readings


@pytest.mark.parametrize("every", [1, 5])
def test_sixteen_gpus_read_back_from_a_real_log_add_up_to_their_counters(tmp_path: Path, every: int) -> None:
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    summaries, readings = with_counters(10)
    with tensorboard.SummaryWriter(tmp_path) as writer:
        log = TensorBoardLog(writer)
        for summary in summaries:
            log.add(summary)
            if summary.iteration % every == 0 and summary.phase != "evaluation":
                log.write(summary.iteration)
    events = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0})
    events.Reload()
    tags = [Tags(emulated=True).gpu(f"node{node}", gpu, "interval-energy-j") for node in range(2) for gpu in range(8)]
    read = [{event.step: event.value for event in events.Scalars(tag)} for tag in tags]
    steps = list(range(every, 11, every))
    for rank, values in enumerate(read):
        assert list(values) == steps
        for step in steps:
            counted_j = (readings[step][rank] - readings[step - every][rank]) / 1000
            assert values[step] == pytest.approx(counted_j, rel=1e-7)  # 32-bit floats
    total_j = sum(readings[10]) / 1000 - sum(readings[0]) / 1000
    assert sum(sum(values.values()) for values in read) == pytest.approx(total_j, rel=1e-7)
    assert events.Scalars(Tags(emulated=True).job("total-j"))[-1].value == pytest.approx(total_j, rel=1e-7)


def test_values_of_a_log_interval() -> None:
    first, second = run_summaries(0, 2)
    for summary, energy_j, time_s in ((first, 100.0, 1.0), (second, 200.0, 3.0)):
        summary.time_s = time_s
        summary.gpus = [replace(g, energy_j=energy_j + i, waiting_s=time_s / 4) for i, g in enumerate(summary.gpus[:2])]
    writer = logged([first, second], every=2)
    scalars = {tag: values[2] for tag, values in writer.scalars.items()}
    tags = Tags(emulated=True)
    assert scalars[tags.job("interval-energy-j")] == 602.0
    assert scalars[tags.job("iteration-energy-j")] == 301.0
    assert scalars[tags.job("iteration-time-s")] == 2.0
    assert scalars[tags.job("power-w")] == 150.5
    assert [scalars[tags.spread("iteration-energy-j", s)] for s in ("mean", "min", "max")] == [150.5, 150.0, 151.0]
    assert scalars[tags.gpu("node0", 1, "power-w")] == 302.0 / 4
    assert scalars[tags.gpu("node0", 0, "waiting-percent")] == 25.0


def test_megatrons_tags_keep_megatrons_meaning() -> None:
    """Megatron: joules of all GPUs over iterations and GPUs; power is that over the mean time of an iteration."""
    summaries = run_summaries(0, 4)
    scalars = logged(summaries, every=4).scalars
    energy_j = sum(s.energy_j for s in summaries) / 4 / 16
    assert scalars[MEGATRON_ENERGY][4] == pytest.approx(energy_j)
    assert scalars[MEGATRON_POWER][4] == pytest.approx(energy_j / (sum(s.time_s for s in summaries) / 4))
    without = logged(summaries, megatron_tags=False)
    assert MEGATRON_ENERGY not in without.scalars
    assert MEGATRON_ENERGY not in without.texts["energy/about (emulated)"]


def test_every_figure_of_emulated_gpus_says_so() -> None:
    writer = logged(run_summaries(2, 2))
    own = [tag for tag in writer.scalars if tag not in (MEGATRON_ENERGY, MEGATRON_POWER)]
    assert all(tag.startswith("energy/") and tag.endswith(" emulated") for tag in own)
    (layout,) = writer.layouts
    assert all(title.endswith("(emulated)") for charts in layout.values() for title in [*layout, *charts])
    assert "emulated" in writer.texts["energy/about (emulated)"]


def test_real_gpus_are_not_called_emulated() -> None:
    writer = logged(run_summaries(2, 2, emulated=False))
    assert not [name for name in [*writer.scalars, *writer.texts, str(writer.layouts), str(writer.texts)] if "emulated" in name]


def test_tags_have_no_parentheses() -> None:
    """TensorBoard's custom scalars page draws no line for a tag with parentheses."""
    assert not [tag for tag in logged(run_summaries(2, 2)).scalars if re.search(r"[()\[\]]", tag)]


@pytest.mark.parametrize("emulated", [True, False])
def test_every_chart_of_the_layout_finds_its_tags(emulated: bool) -> None:
    writer = logged(run_summaries(2, 2, emulated=emulated))
    (layout,) = writer.layouts
    charts = [chart for charts in layout.values() for chart in charts.values()]
    for kind, tags in charts:
        if kind == "Margin":
            assert len(tags) == 3
            assert all(tag in writer.scalars for tag in tags)
        else:
            assert all(len([t for t in writer.scalars if re.search(pattern, t)]) == 1 for pattern in tags)
            assert len(tags) <= 8
    nodes = next(charts for category, charts in layout.items() if "node by node" in category)
    assert [title.partition(":")[0] for title in nodes] == ["node0", "node0", "node1", "node1"]


def test_nodes_are_in_the_order_of_their_numbers() -> None:
    places = [("n10", 0), ("n2", 1), ("n2", 0), ("gpu-a", 0), ("n1", 10), ("n1", 9), ("9", 0)]
    ordered = [("9", 0), ("gpu-a", 0), ("n1", 9), ("n1", 10), ("n2", 0), ("n2", 1), ("n10", 0)]
    assert sorted(places, key=lambda place: place_of(*place)) == ordered
    summaries = run_summaries(1, 1)
    for gpu in (gpu for summary in summaries for gpu in summary.gpus):
        gpu.node = "n10" if gpu.node == "node0" else "n2"
    (layout,) = logged(summaries).layouts
    titles = next(charts for category, charts in layout.items() if "node by node" in category)
    assert [title.partition(":")[0] for title in titles] == ["n2", "n2", "n10", "n10"]


def test_what_was_not_measured_is_left_out_and_named() -> None:
    summaries = run_summaries(2, 1)
    for summary in summaries:
        summary.gpus[0].energy_j = math.nan
    writer = logged(summaries)
    tags = Tags(emulated=True)
    assert all(math.isfinite(v) for values in writer.scalars.values() for v in values.values())
    assert tags.gpu("node0", 0, "interval-energy-j") not in writer.scalars
    assert tags.job("interval-energy-j") not in writer.scalars
    assert tags.job("iteration-time-s") in writer.scalars
    assert "node0/0" in writer.texts["energy/about (emulated)"]


def test_before_there_is_a_baseline_no_saving_is_claimed() -> None:
    writer = logged(run_summaries(3, 1))
    assert list(writer.scalars[Tags(emulated=True).job("saved-percent")]) == [4]


def test_with_too_many_gpus_only_the_spread_is_written_and_the_text_says_so() -> None:
    writer = logged(run_summaries(1, 1), gpu_limit=8)
    assert not [tag for tag in writer.scalars if tag.startswith("energy/gpu/")]
    assert Tags(emulated=True).spread("power-w", "max") in writer.scalars
    assert not [category for category in writer.layouts[0] if "node by node" in category]
    assert "16 GPUs are too many" in writer.texts["energy/about (emulated)"]


def test_without_iterations_nothing_is_written() -> None:
    writer = MemoryWriter()
    TensorBoardLog(writer).write(10)
    assert not writer.scalars
    assert not writer.layouts


def test_finish_writes_one_row_into_the_same_directory() -> None:
    writer = MemoryWriter()
    log = TensorBoardLog(writer)
    log.add(run_summaries(0, 1)[0])
    log.write(1)
    log.finish({"policy": "segments"}, {"saved-percent": 12.0, "slowdown-percent": math.nan})
    assert writer.hparams == [
        ({"energy/policy": "segments", "energy/gpus": "emulated"}, {"energy/result/saved-percent emulated": 12.0}, ".")
    ]
    assert writer.flushed == 1


def test_texts_and_pictures_before_the_first_write_are_marked_too() -> None:
    writer = MemoryWriter()
    log = TensorBoardLog(writer)
    log.add(run_summaries(0, 1)[0])
    log.text("plan", "| a |", 1)
    log.image("timeline", None, 1)  # type: ignore[arg-type]
    assert list(writer.texts) == ["energy/plan (emulated)", "energy/timeline (emulated)"]


def test_the_manual_explains_every_tag() -> None:
    manual = (Path(__file__).parents[2] / "docs" / "tensorboard.md").read_text(encoding="utf-8")
    missing = [name for name in JOB_MEASURES if f"| `energy/all/{name}` |" not in manual]
    missing += [name for name in GPU_MEASURES if f"| `.../{name}` |" not in manual]
    assert not missing
