"""A plan and its file: which clock every GPU runs at, segment by segment, and what that is expected to give.

The file is JSON with a schema version. Segments are stored once per class of identical GPUs: a pipeline stage of all replicas, or, where
GPUs differ, those of its ranks that are alike (``"ranks": "0-3,8"``)::

    {"schema": "megatron-energy/plan", "version": 1,
     "layout": {"tensor": 2, ..., "pipeline": 4}, "schedule": {"stages": 4, ..., "p2p": "overlap"}, "fingerprint": "5f0c...",
     "policy": "segments", "max_switches": 8, "lead_s": 0.064, "slowdown": 0.0, "straggler": 1.0,
     "expected": {"iteration_s": ..., "energy_j": ..., "saved_percent": ..., ...},
     "units": [{"stage": 0, "segments": [{"kind": "forward", "chunk": 0, "microbatch": 3, "clock_mhz": 1200}, ...],
                "requests": [{"kind": "forward", "chunk": 0, "microbatch": 2, "edge": "end", "delay_s": 0.01, "clock_mhz": 1410, ...}]}],
     "provenance": {...}}
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from megatron_energy.atomic import write_whole
from megatron_energy.errors import UserError
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.planning.rank_ranges import ranks_of

SCHEMA = "megatron-energy/plan"
VERSION = 1
LAYOUT = ("tensor", "context", "expert", "data", "pipeline")
"""The parallel sizes that a plan names."""


@dataclass(frozen=True)
class Segment:
    """From the begin of this operation (or grad-sync, optimizer) on, the GPU runs at this clock."""

    kind: str
    chunk: int
    microbatch: int
    clock_mhz: int


@dataclass(frozen=True)
class TransitionRequest:
    """A clock request anchored to a transition point.

    Attributes:
        kind, chunk, microbatch, edge: the transition point; ``edge`` is begin or end.
        clock_mhz: what is asked for.
        delay_s: how long after the transition point it is issued.
        ahead: how many operations (grad syncs and optimizer steps included) may begin from here before the one that needs the clock.
        raise_in_s: of a lower: how long after it the next raise is asked for, by the plan's own times; None: of a raise, or not known.
    """

    kind: str
    chunk: int
    microbatch: int
    edge: str
    clock_mhz: int
    delay_s: float = 0.0
    ahead: int = 0
    raise_in_s: float | None = None


@dataclass(frozen=True)
class UnitPlan:
    """One class of identical GPUs: a stage, in all replicas, or some of its ranks.

    Attributes:
        stage: pipeline stage.
        segments: in the order of the iteration; the last one's clock holds until the first one begins in the next iteration.
        requests: how the segments are brought about; see :mod:`megatron_energy.planning.requests`.
        ranks: which ranks, such as ``0-3,8``; empty: all of the stage.
    """

    stage: int
    segments: tuple[Segment, ...]
    requests: tuple[TransitionRequest, ...] = ()
    ranks: str = ""

    @property
    def switches(self) -> int:
        """Changes of the clock per iteration, counted cyclically."""
        clocks = [s.clock_mhz for s in self.segments]
        return sum(a != b for a, b in zip(clocks, clocks[1:] + clocks[:1], strict=True))


@dataclass(frozen=True)
class Expectation:
    """What a plan gives by replay. Energies are of all GPUs of the job; percentages are against the baseline."""

    iteration_s: float
    energy_j: float
    baseline_iteration_s: float
    baseline_energy_j: float
    deadline_s: float
    saved_percent: float
    slowdown_percent: float
    bound_saved_percent: float | None = None
    limit_saved_percent: float | None = None  # proven: no plan with so few switches saves more

    @property
    def bound_share_percent(self) -> float | None:
        """Saving as a share of the bound."""
        return 100 * self.saved_percent / self.bound_saved_percent if self.bound_saved_percent else None


@dataclass(frozen=True)
class Plan:
    """See the module's text.

    Attributes:
        layout: parallel sizes by name (tensor, context, expert, data, pipeline).
        schedule: the pipeline schedule with its communication mode.
        policy: how it was made.
        max_switches: how many it was allowed.
        lead_s: how early raises are requested.
        slowdown, straggler: what the deadline was made of.
        expected: replayed figures.
        units: one per class of identical GPUs.
        fingerprint: of the model the plan is for; empty: any.
        solve_s: time the planner took.
        provenance: where the profile came from, and whether it was emulated.
    """

    layout: dict[str, int]
    schedule: Schedule
    policy: str
    max_switches: int
    lead_s: float
    expected: Expectation
    units: tuple[UnitPlan, ...]
    fingerprint: str = ""
    solve_s: float = 0.0
    slowdown: float = 0.0
    straggler: float = 1.0
    provenance: dict[str, str | float | bool] = field(default_factory=dict)

    @property
    def gpus(self) -> int:
        """Number of GPUs of the job."""
        return self.layout["tensor"] * self.layout["context"] * self.layout["data"] * self.layout["pipeline"]

    @property
    def clocks_mhz(self) -> set[int]:
        """Every clock that any segment uses."""
        return {segment.clock_mhz for unit in self.units for segment in unit.segments}

    @property
    def switches_mean(self) -> float:
        """Switches per GPU and iteration, mean."""
        return sum(u.switches * self.gpus_of(u) for u in self.units) / sum(self.gpus_of(u) for u in self.units)

    @property
    def switches_max(self) -> int:
        """Switches per GPU and iteration, of the GPU with the most."""
        return max(u.switches for u in self.units)

    @property
    def by_rank(self) -> bool:
        """Whether GPUs of one stage differ in their clocks, so that every class names its ranks."""
        return any(u.ranks for u in self.units)

    @cached_property
    def _unit_of_rank(self) -> dict[int, UnitPlan]:
        return {rank: u for u in self.units if u.ranks for rank in ranks_of(u.ranks, self.gpus)}

    def gpus_of(self, unit: UnitPlan) -> int:
        """How many GPUs follow one of ``units``."""
        return len(ranks_of(unit.ranks, self.gpus)) if unit.ranks else self.gpus // self.layout["pipeline"]

    def unit(self, stage: int, rank: int | None = None) -> UnitPlan:
        """The plan of a stage's GPUs, or of one of them.

        Raises:
            UserError: the plan tells the ranks apart, and has this one in another stage.
        """
        if rank is None or not self.by_rank:
            return next(u for u in self.units if u.stage == stage)
        found = self._unit_of_rank[rank]
        if found.stage != stage:
            raise UserError(f"the plan has rank {rank} in stage {found.stage}, this run in stage {stage}: plan for this order of ranks")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        body = dataclasses.asdict(self)
        body["units"] = [dataclasses.asdict(u) for u in self.units]
        return {"schema": SCHEMA, "version": VERSION, **body}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file; a reader never sees half of it.

        Raises:
            UserError: the file cannot be written.
        """
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps(self.to_dict(), indent=1) + "\n")
        except OSError as error:
            raise UserError(f"cannot write the plan {path}: {error.strerror}") from error


def check_plan(plan: Plan, layout: Mapping[str, int], schedule: Schedule, fingerprint: str = "") -> None:
    """Refuse a plan that was made for something else.

    Raises:
        UserError: names the first size, schedule setting or model that differs.
    """
    for name, size in layout.items():
        if plan.layout.get(name, 1) != size:
            raise UserError(
                f"the plan was made for {name} parallel size {plan.layout.get(name, 1)}, this run has {size}: make a plan for this layout"
            )
    for setting in dataclasses.fields(Schedule):
        planned, here = getattr(plan.schedule, setting.name), getattr(schedule, setting.name)
        if setting.name == "group_size":
            planned, here = plan.schedule.group, schedule.group
        if planned != here:
            raise UserError(f"the plan was made for {setting.name} {planned}, this run has {here}: make a plan for this schedule")
    if plan.fingerprint and fingerprint and plan.fingerprint != fingerprint:
        raise UserError(
            f"the plan was made for another model (fingerprint {plan.fingerprint}, this run {fingerprint}): make a plan for this one"
        )
