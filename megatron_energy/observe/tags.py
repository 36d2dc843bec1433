"""Names of everything in TensorBoard, and the layout of its custom scalars page.

Scheme: ``energy/all/...`` is the job, ``energy/each-gpu/...`` the spread over its GPUs, ``energy/gpu/<node>/<index>/...`` one
GPU; the unit is the last word. TensorBoard sorts by name, so the job comes first, on a page of its own. Figures of emulated
GPUs say ``emulated`` in the tag itself, so that no chart can show them without saying so.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

from megatron_energy.observe.interval import GpuInterval

Layout: TypeAlias = dict[str, dict[str, list[str | list[str]]]]
"""What ``SummaryWriter.add_custom_scalars`` takes: category, chart title, [kind, tags]."""

MEGATRON_ENERGY = "iter-energy/gpu"
"""Megatron's tag (``--log-energy``): J per iteration and GPU, mean over the GPUs and over the log interval."""
MEGATRON_POWER = "power/gpu"
"""Megatron's tag: the energy above over the mean time of an iteration, W."""

GPU_MEASURES: Mapping[str, str] = {
    "interval-energy-j": "J since the last logged step, evaluation included; sums over GPUs and steps are counter differences",
    "iteration-energy-j": "J per training iteration, mean over the log interval",
    "power-w": "mean power over the training iterations",
    "clock-mhz": "SM clock that it ran at (below the request where its power cap held it), mean weighted by time",
    "waiting-percent": "share of the time spent waiting in communication",
    "throttled-percent": "share of the time in which the GPU held its clock below the request",
    "requests": "clock requests per iteration",
}

JOB_MEASURES: Mapping[str, str] = {
    "interval-energy-j": "J of all GPUs since the last logged step, evaluation included",
    "iteration-energy-j": "J of all GPUs per training iteration, mean over the log interval",
    "expected-energy-j": "what the plan expects of iteration-energy-j, for iterations under the plan",
    "iteration-time-s": "time of a training iteration, mean over the log interval",
    "expected-time-s": "what the plan expects of iteration-time-s, for iterations under the plan",
    "power-w": "power of all GPUs together",
    "saved-percent": "energy saved against the baseline window",
    "slowdown-percent": "time lost against the baseline window (negative: gained)",
    "total-j": "J of all GPUs since this process began to log",
    "total-saved-j": "J that the baseline would have used on top since this process began to log",
    "plan-version": "which plan is in force; 0: none",
    "late-raises": "raises that came into force too late, all GPUs, since the last logged step",
}

SPREAD_MEASURES: Mapping[str, str] = {
    "iteration-energy-j": "Energy of a GPU, J per iteration",
    "power-w": "Power of a GPU, W",
    "clock-mhz": "SM clock of a GPU, MHz",
    "waiting-percent": "Waiting of a GPU, % of the time",
    "requests": "Clock requests of a GPU per iteration",
}
"""Measures whose mean, min and max over the GPUs are logged, with the title of their margin chart."""

SPREAD = ("mean", "min", "max")


@dataclass(frozen=True)
class Tags:
    """Tags of one run.

    Args:
        emulated: mark every tag as such.
    """

    emulated: bool = False

    def mark(self, name: str) -> str:
        """Name of a title, text, picture or column: with ``(emulated)`` where it is so."""
        return f"{name} (emulated)" if self.emulated else name

    def scalar(self, name: str) -> str:
        """Tag of a scalar: with ``emulated`` at its end where it is so."""
        # No parentheses here: TensorBoard's custom scalars page finds such a tag and draws no line for it (seen in 2.21).
        return f"{name} emulated" if self.emulated else name

    def job(self, measure: str) -> str:
        """One figure of the whole job."""
        return self.scalar(f"energy/all/{measure}")

    def spread(self, measure: str, statistic: str) -> str:
        """Mean, min or max over the GPUs."""
        return self.scalar(f"energy/each-gpu/{measure}/{statistic}")

    def gpu(self, node: str, index: int, measure: str) -> str:
        """One figure of one GPU."""
        return self.scalar(f"energy/gpu/{node}/{index}/{measure}")

    def layout(self, gpus: Sequence[GpuInterval]) -> Layout:
        """The custom scalars page: the job, the spread over the GPUs, and two charts per node.

        A multiline chart draws all lines of a run in one colour, so a chart never holds more GPUs than one node has.

        Args:
            gpus: the GPUs that are logged one by one, in the order (node, index); may be empty.
        """
        job = {
            "Saved, %": self._lines(("saved-percent",)),
            "Slowdown, %": self._lines(("slowdown-percent",)),
            "Saved so far, J": self._lines(("total-saved-j",)),
            "Energy of all GPUs, J per iteration: measured and expected": self._lines(("iteration-energy-j", "expected-energy-j")),
            "Time of an iteration, s: measured and expected": self._lines(("iteration-time-s", "expected-time-s")),
            "Power of all GPUs, W": self._lines(("power-w",)),
        }
        spread: dict[str, list[str | list[str]]] = {
            f"{title}: mean, min, max": ["Margin", [self.spread(measure, statistic) for statistic in SPREAD]]
            for measure, title in reversed(list(SPREAD_MEASURES.items()))  # TensorBoard 2.21 shows margin charts last to first
        }
        layout = {"Energy: the job": job, "Energy: all GPUs": spread}
        nodes = {node: [g.gpu.gpu for g in members] for node, members in groupby(gpus, key=lambda g: g.gpu.node)}
        if nodes:
            layout["Energy: node by node"] = {
                f"{node}: {SPREAD_MEASURES[measure]}": _multiline(self.gpu(node, index, measure) for index in indices)
                for node, indices in nodes.items()
                for measure in ("iteration-energy-j", "power-w")
            }
        return {self.mark(category): {self.mark(title): c for title, c in charts.items()} for category, charts in layout.items()}

    def _lines(self, measures: Iterable[str]) -> list[str | list[str]]:
        return _multiline(self.job(measure) for measure in measures)


def _multiline(tags: Iterable[str]) -> list[str | list[str]]:
    # TensorBoard takes the tags of a multiline chart as regular expressions.
    return ["Multiline", [f"^{re.escape(tag)}$" for tag in tags]]
