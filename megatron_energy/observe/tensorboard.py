"""Energy in TensorBoard, through the writer that the training script already has."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from megatron_energy.observe.interval import GpuInterval, Interval, Totals, finite, mean
from megatron_energy.observe.tags import GPU_MEASURES, JOB_MEASURES, MEGATRON_ENERGY, MEGATRON_POWER, SPREAD_MEASURES, Layout, Tags
from megatron_energy.records.summary import IterationSummary

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Writer(Protocol):
    """The part of ``torch.utils.tensorboard.SummaryWriter`` that is used; any object with these methods will do."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any:
        """One point of a chart."""

    def add_text(self, tag: str, text_string: str, global_step: int) -> Any:
        """Markdown."""

    def add_image(self, tag: str, img_tensor: "npt.NDArray[np.uint8]", global_step: int, *, dataformats: str) -> Any:
        """A picture; ``dataformats``: its axes, such as HWC."""

    def add_custom_scalars(self, layout: Layout) -> Any:
        """Layout of the custom scalars page; works once per writer."""

    def add_hparams(self, hparam_dict: dict[str, Any], metric_dict: dict[str, Any], *, run_name: str) -> Any:
        """One row of the HPARAMS page."""

    def flush(self) -> Any:
        """Write what is queued."""


@runtime_checkable
class StepWriter(Protocol):
    """A writer that is told when all scalars of a step have come."""

    def end_step(self, step: int) -> None:
        """All scalars of this step have come."""


class TensorBoardLog:
    """Collects iterations and writes them at the training script's log interval.

    Example::

        log = TensorBoardLog(writer)
        log.add(summary)        # every iteration
        log.write(iteration)    # whenever the script itself logs

    What the tags mean stands in :data:`GPU_MEASURES`, :data:`JOB_MEASURES` and docs/tensorboard.md. A value that was not
    measured (NaN) is not written: a gap in the chart, never a zero.

    Args:
        writer: the training script's own writer. In Megatron it exists on the last rank only.
        megatron_tags: also write Megatron's ``iter-energy/gpu`` and ``power/gpu``, with Megatron's meaning. Switch it off where
            Megatron writes them itself (``--log-energy``).
        gpu_limit: with more GPUs than this only their mean, minimum and maximum are written, and the text says so: TensorBoard
            becomes unusable with tens of thousands of charts.
        pending: iterations that ran before there was a writer; they are part of the first :meth:`write`.
    """

    def __init__(self, writer: Writer, *, megatron_tags: bool = True, gpu_limit: int = 256, pending: Totals | None = None) -> None:
        self._writer = writer
        self._megatron_tags = megatron_tags
        self._gpu_limit = gpu_limit
        self._pending = Totals() if pending is None else pending
        self._tags = Tags(emulated=bool(self._pending) and self._pending.interval().emulated)
        self._layout_written = False
        self._total_j = 0.0
        self._saved_j = 0.0

    def add(self, summary: IterationSummary) -> None:
        """Take one iteration; it is part of the next :meth:`write`."""
        if summary.emulated and not self._tags.emulated:
            self._tags = Tags(emulated=True)
        self._pending.add(summary)

    def write(self, step: int) -> None:
        """Write the iterations since the last call as the figures of ``step``; without any, write nothing."""
        if not self._pending:
            return
        interval, self._pending = self._pending.interval(), Totals()
        self._total_j += math.fsum(finite(gpu.energy_j for gpu in interval.gpus))  # a GPU that could not be read leaves a gap
        self._saved_j += math.fsum(finite([interval.saved_j]))
        if not self._layout_written:
            self._introduce(interval, step)
        for tag, value in self._scalars(interval).items():
            if value is not None and math.isfinite(value):
                self._writer.add_scalar(tag, float(value), step)
        if isinstance(self._writer, StepWriter):
            self._writer.end_step(step)

    def text(self, name: str, markdown: str, step: int) -> None:
        """Write Markdown, for example :func:`megatron_energy.observe.plan_text.plan_markdown`, under ``energy/<name>``."""
        self._writer.add_text(self._tags.mark(f"energy/{name}"), markdown, step)

    def image(self, name: str, image: "npt.NDArray[np.uint8]", step: int) -> None:
        """Write a picture, for example the time line, under ``energy/<name>``: [height, width, red-green-blue]."""
        self._writer.add_image(self._tags.mark(f"energy/{name}"), image, step, dataformats="HWC")

    def finish(self, settings: Mapping[str, str | float | bool], results: Mapping[str, float]) -> None:
        """Write the run's row of the HPARAMS page, at the end of the run only.

        The row goes to an event file of its own in the same directory, and a TensorBoard that is already watching reads
        on in the newest file: what the script's writer still writes afterwards appears there only after a reload.

        Args:
            settings: what was asked for (policy, slowdown, ...).
            results: figures at the end, such as ``saved-percent``; values that are not finite are left out.
        """
        named: dict[str, Any] = {f"energy/{name}": value for name, value in settings.items()}
        named["energy/gpus"] = "emulated" if self._tags.emulated else "real"
        metrics: dict[str, Any] = {
            self._tags.scalar(f"energy/result/{name}"): float(value) for name, value in results.items() if math.isfinite(value)
        }
        self._writer.flush()
        self._writer.add_hparams(named, metrics, run_name=".")

    def _introduce(self, interval: Interval, step: int) -> None:
        """Layout and explanation, once: as soon as the GPUs are known."""
        self._layout_written = True
        each = self._each(interval)
        self._writer.add_custom_scalars(self._tags.layout(each))
        self.text("about", _about(interval, all_listed=len(each) == len(interval.gpus), megatron_tags=self._megatron_tags), step)

    def _each(self, interval: Interval) -> Sequence[GpuInterval]:
        return interval.gpus if len(interval.gpus) <= self._gpu_limit else ()

    def _scalars(self, interval: Interval) -> dict[str, float | None]:
        tags = self._tags
        job = _job_values(interval) | {"total-j": self._total_j, "total-saved-j": self._saved_j}
        scalars: dict[str, float | None] = {tags.job(name): job[name] for name in JOB_MEASURES}
        per_gpu = [_gpu_values(gpu) for gpu in interval.gpus]
        for measure in SPREAD_MEASURES:
            known = finite(values[measure] for values in per_gpu)
            if known:
                for statistic, value in (("mean", mean(known)), ("min", min(known)), ("max", max(known))):
                    scalars[tags.spread(measure, statistic)] = value
        for gpu in self._each(interval):
            values = _gpu_values(gpu)
            scalars |= {tags.gpu(gpu.gpu.node, gpu.gpu.gpu, measure): values[measure] for measure in GPU_MEASURES}
        if self._megatron_tags and interval.gpus:
            energy_j = interval.iteration_energy_j / len(interval.gpus)
            scalars[MEGATRON_ENERGY] = energy_j
            scalars[MEGATRON_POWER] = energy_j / interval.time_s if interval.time_s > 0 else None
        return scalars


def _job_values(interval: Interval) -> dict[str, float | None]:
    return {
        "interval-energy-j": interval.energy_j,
        "iteration-energy-j": interval.iteration_energy_j,
        "expected-energy-j": interval.expected_energy_j,
        "iteration-time-s": interval.time_s,
        "expected-time-s": interval.expected_time_s,
        "power-w": interval.iteration_energy_j / interval.time_s if interval.time_s > 0 else None,
        "saved-percent": interval.saved_percent,
        "slowdown-percent": interval.slowdown_percent,
        "plan-version": interval.plan_version,
        "late-raises": sum(g.late_raises for g in interval.gpus),
    }


def _gpu_values(gpu: GpuInterval) -> dict[str, float]:
    return {
        "interval-energy-j": gpu.energy_j,
        "iteration-energy-j": gpu.iteration_energy_j,
        "power-w": gpu.power_w,
        "clock-mhz": gpu.clock_mhz,
        "waiting-percent": gpu.waiting_percent,
        "throttled-percent": gpu.throttled_percent,
        "requests": gpu.requests,
    }


def _about(interval: Interval, *, all_listed: bool, megatron_tags: bool) -> str:
    """What a reader of these charts must know, in Markdown."""
    count = len(interval.gpus)
    lines = [f"## Energy of {count} {'emulated ' if interval.emulated else ''}GPUs", ""]
    if interval.emulated:
        lines += ["**Every figure under `energy/` is emulated**: time, power and energy come from a model of the GPU, not from a sensor."]
        if megatron_tags:
            lines += [f"So are `{MEGATRON_ENERGY}` and `{MEGATRON_POWER}`, which keep Megatron's names."]
        lines += [""]
    unmeasured = [f"{g.gpu.node}/{g.gpu.gpu}" for g in interval.gpus if not math.isfinite(g.energy_j)]
    if unmeasured:
        lines += [f"No energy could be read on {', '.join(unmeasured)}, so totals of the job are left out.", ""]
    if not all_listed:
        lines += [
            f"{count} GPUs are too many to chart one by one: here are mean, minimum and maximum, in iterations.jsonl all of them.",
            "",
        ]
    lines += ["| tag | meaning |", "| --- | --- |"]
    lines += [f"| `energy/all/{name}` | {meaning} |" for name, meaning in JOB_MEASURES.items()]
    lines += [f"| `energy/each-gpu/{name}/{{mean,min,max}}` | over the GPUs: {GPU_MEASURES[name]} |" for name in SPREAD_MEASURES]
    if all_listed:
        lines += [f"| `energy/gpu/<node>/<index>/{name}` | {meaning} |" for name, meaning in GPU_MEASURES.items()]
    return "\n".join(lines)
