"""The planning problem: which clock for every vertex of a graph uses the least energy until a deadline.

Energies here are those of one GPU of every unit, added over the units; ``gpus_per_unit`` scales what is reported to people.

A GPU that does not compute draws the blocking power until the iteration's own end (with a straggler: until the straggler's end).
So with N units, horizon H and vertices v the energy is::

    sum of energy_v + blocking x (N x H - sum of time_v)  =  sum of (energy_v - blocking x time_v) + blocking x N x H

The first sum over the *effective* costs is what clocks decide; the second depends on the horizon alone (Perseus, SOSP'24, section 4).
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from megatron_energy.errors import UserError
from megatron_energy.pipeline.graph import FloatArray, Graph, IntArray
from megatron_energy.pipeline.replay import makespans
from megatron_energy.planning.paths import Paths
from megatron_energy.profiles.tables import Tables

TIME_TOLERANCE = 1e-11
"""Relative excess over the deadline that is rounding: sums of the same durations in another order differ by this much at most."""


@dataclass(frozen=True)
class Evaluation:
    """What one choice of clocks costs.

    Attributes:
        iteration_s: seconds until the last vertex ends.
        energy_j: joules of all GPUs until the horizon.
        saved_percent: energy saved against the baseline.
        slowdown_percent: time lost against the baseline (with a straggler: against the straggler's time).
    """

    iteration_s: float
    energy_j: float
    saved_percent: float
    slowdown_percent: float


@dataclass(frozen=True)
class Problem:
    """Graph, tables and deadline; n vertices, F clocks.

    Attributes:
        graph: the dependency graph of one iteration.
        tables: time and energy of one GPU per vertex and clock.
        blocking_power_w: W of a GPU that waits in communication.
        gpus_per_unit: GPUs that each unit of the graph stands for (tensor x context, and replicas that the graph leaves out).
        slowdown: permitted, 0.01 is one percent.
        straggler: how much longer than this pipeline's baseline another replica takes, 1 or more.
        baseline_column: clock column of the GPUs as found.
        unit_weights: (units,) how often each unit counts in every energy, such as the number of like replicas that it stands for;
            None: once.
        given_deadline_s: the deadline itself; None: what slowdown and straggler make of the baseline's time.

    Raises:
        UserError: a value that makes no sense.
    """

    graph: Graph
    tables: Tables
    blocking_power_w: float
    gpus_per_unit: int = 1
    slowdown: float = 0.0
    straggler: float = 1.0
    baseline_column: int = 0
    unit_weights: FloatArray | None = None
    given_deadline_s: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.blocking_power_w) and self.blocking_power_w >= 0):
            raise UserError(f"blocking power must be zero W or more, not {self.blocking_power_w}")
        if not (math.isfinite(self.slowdown) and self.slowdown >= 0):
            raise UserError(f"slowdown must be zero or more, not {self.slowdown}")
        if not (math.isfinite(self.straggler) and self.straggler >= 1):
            raise UserError(f"straggler must be 1 or more (its time relative to the baseline), not {self.straggler}")
        if self.gpus_per_unit < 1:
            raise UserError(f"every unit needs at least one GPU, not {self.gpus_per_unit}")
        if self.given_deadline_s is not None and not (math.isfinite(self.given_deadline_s) and self.given_deadline_s >= 0):
            raise UserError(f"the deadline must be zero s or more, not {self.given_deadline_s}")
        if self.unit_weights is not None and self.unit_weights.shape != (len(self.graph.units),):
            raise ValueError(f"{self.unit_weights.shape} weights for {len(self.graph.units)} units")

    @cached_property
    def paths(self) -> Paths:
        """Smooth longest paths of the graph."""
        return Paths(self.graph)

    @cached_property
    def cost_j(self) -> FloatArray:
        """(n, F) effective energy: energy - blocking power x time."""
        cost_j = self.tables.energy_j - self.blocking_power_w * self.tables.time_s
        return cost_j if self.unit_weights is None else cost_j * self.unit_weights[self.graph.unit_of_vertex, np.newaxis]

    @cached_property
    def baseline_clocks(self) -> IntArray:
        """(n,) clock columns of the baseline."""
        return np.full(len(self.graph.vertices), self.baseline_column, dtype=np.int64)

    @cached_property
    def baseline_s(self) -> float:
        """Replayed iteration time of the baseline."""
        return self.iteration_s(self.baseline_clocks)

    @cached_property
    def straggler_s(self) -> float:
        """When the straggler ends; without one the baseline's own time."""
        return self.baseline_s * self.straggler

    @cached_property
    def deadline_s(self) -> float:
        """Straggler x (1 + slowdown) x the baseline's time, unless it was given."""
        return self.straggler_s * (1 + self.slowdown) if self.given_deadline_s is None else self.given_deadline_s

    @cached_property
    def horizon_power_w(self) -> float:
        """W that all units together draw per second of horizon: blocking power x units."""
        count = len(self.graph.units) if self.unit_weights is None else float(self.unit_weights.sum())
        return self.blocking_power_w * count

    @cached_property
    def earliest_horizon_s(self) -> float:
        """Energy is counted at least until then: the straggler's end, if there is one."""
        return self.straggler_s if self.straggler > 1 else 0.0

    @cached_property
    def baseline_energy_j(self) -> float:
        """Joules of the baseline, one GPU per unit."""
        return float(self.cost_j[:, self.baseline_column].sum()) + self.horizon_power_w * self.straggler_s

    @cached_property
    def longest_operation_s(self) -> float:
        """Seconds of the longest vertex, at any clock: the natural unit of time; 1 where nothing takes time."""
        return float(self.tables.time_s.max(initial=0.0)) or 1.0

    @cached_property
    def costliest_operation_j(self) -> float:
        """Largest effective energy of a vertex, by size: the natural unit of energy; 1 where nothing costs energy."""
        return float(np.abs(self.cost_j).max(initial=0.0)) or 1.0

    def durations(self, clocks: IntArray) -> FloatArray:
        """(n,) seconds for (n,) clock columns."""
        return np.asarray(self.tables.time_s[np.arange(len(clocks)), clocks], dtype=np.float64)

    def iteration_s(self, clocks: IntArray) -> float:
        """Replayed iteration time for (n,) clock columns."""
        return float(makespans(self.graph, self.durations(clocks)[:, np.newaxis])[0])

    def effective_j(self, clocks: IntArray) -> float:
        """Sum of effective energies for (n,) clock columns."""
        return float(self.cost_j[np.arange(len(clocks)), clocks].sum())

    def energy_j(self, effective_j: float, iteration_s: float) -> float:
        """Joules of one GPU per unit from the sum of effective energies and the iteration's end."""
        return effective_j + self.horizon_power_w * max(iteration_s, self.earliest_horizon_s)

    def saved_percent(self, energy_j: float) -> float:
        """Percent saved against the baseline by a plan of ``energy_j`` (one GPU per unit); 0 where the baseline uses nothing."""
        return 100 * (1 - energy_j / self.baseline_energy_j) if self.baseline_energy_j else 0.0

    def meets_deadline(self, iteration_s: float) -> bool:
        """Whether an iteration time keeps the deadline (within rounding)."""
        return iteration_s <= self.deadline_s * (1 + TIME_TOLERANCE)

    def evaluate(self, clocks: IntArray) -> Evaluation:
        """Time and energy of (n,) clock columns, for all GPUs."""
        iteration_s = self.iteration_s(clocks)
        energy_j = self.energy_j(self.effective_j(clocks), iteration_s)
        late = max(iteration_s, self.earliest_horizon_s) / self.straggler_s - 1 if self.straggler_s else 0.0
        return Evaluation(
            iteration_s=iteration_s,
            energy_j=energy_j * self.gpus_per_unit,
            saved_percent=self.saved_percent(energy_j),
            slowdown_percent=100 * (0.0 if abs(late) <= TIME_TOLERANCE else late),
        )
