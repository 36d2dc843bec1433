"""One line per iteration: what a person or a plot needs to know. Written to RUN_DIR/iterations.jsonl and TensorBoard."""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Phase: TypeAlias = Literal["baseline", "sweep", "planning", "planned", "maximum", "measure", "evaluation"]


@dataclass(slots=True)
class GpuSummary:
    """One GPU in one iteration."""

    rank: int
    node: str
    gpu: int  # index on its node
    uuid: str
    stage: int
    tensor: int
    data: int
    energy_j: float
    power_w: float  # mean over the iteration
    clock_mhz: float  # time-weighted mean SM clock
    waiting_s: float  # time in communication waits
    requests: int = 0
    late_raises: int = 0
    throttled_s: float = 0.0
    dropped_lowers: int = 0


@dataclass(slots=True)
class IterationSummary:
    """One iteration of the whole job. Percentages are against the baseline window; None until there is one."""

    iteration: int
    phase: Phase
    time_s: float
    gpus: list[GpuSummary] = field(default_factory=list)
    plan_version: int = 0  # 0: no plan in force
    saved_percent: float | None = None
    slowdown_percent: float | None = None
    expected_time_s: float | None = None
    expected_energy_j: float | None = None
    emulated: bool = False

    @property
    def energy_j(self) -> float:
        """Joules of all GPUs together; a GPU that several ranks share counts once."""
        return sum({g.uuid: g.energy_j for g in self.gpus}.values())
