"""What a training job costs on an emulated GPU: time and power of every operation at every clock.

Two ways to get one::

    Workload.from_model(load("a100-sxm4-80gb"), "gpt3-13b", Sizes(stages=4, chunks=2, tensor=2, data=2))
    Workload.from_profile(profile, load("a100-sxm4-80gb"), chunks=2)

From a model, operations are computed (:mod:`costs`, :mod:`physics`) and throttled at the power limit in force. From a measured
profile, they are interpolated between the measured clocks and never throttled again: whatever cap was in force is in the data.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from megatron_energy.emulation.catalog import GpuModel
from megatron_energy.emulation.costs import Dtype, ModelCosts, Sizes
from megatron_energy.emulation.models import LlmModel, named
from megatron_energy.emulation.physics import Load, capped_clock_mhz, power_w, time_s
from megatron_energy.errors import UserError
from megatron_energy.profiles.profile import Curve, Profile

Kind: TypeAlias = Literal["forward", "backward", "grad-sync", "optimizer", "other"]
"""``other``: fixed-time steps of a profile (data loading), spent at the beginning of every iteration."""

_PER_CHUNK = ("forward", "backward")
_NOT_STEPS = ("forward", "backward", "grad-sync", "optimizer", "blocking", "p2p")


class OperatingPoint(NamedTuple):
    """One operation at one requested clock."""

    time_s: float
    power_w: float
    clock_mhz: int  # in force: below the request where the power cap binds
    throttled: bool


class Cost(Protocol):
    """Time and power of one operation by clock."""

    def at(self, gpu: GpuModel, clock_mhz: int, limit_w: float) -> OperatingPoint:
        """The operation with this clock locked and this power limit."""


@dataclass(frozen=True, slots=True)
class PhysicalCost:
    """An operation computed from its load, throttled at the power limit."""

    load: Load

    def at(self, gpu: GpuModel, clock_mhz: int, limit_w: float) -> OperatingPoint:
        """The operation with this clock locked and this power limit."""
        load = self.load
        clock = capped_clock_mhz(gpu, clock_mhz, limit_w, load.compute, load.memory)
        power = power_w(gpu, clock, load.compute, load.memory)
        return OperatingPoint(time_s(gpu, load, clock), power, clock, clock < clock_mhz)


@dataclass(frozen=True)
class MeasuredCost:
    """An operation from measured curves (their sum), linear between clocks.

    Below the lowest measured clock the time grows as 1/f at the lowest clock's power; above the highest nothing changes.
    """

    curves: tuple[Curve, ...]
    share: float = 1.0  # of the measured time and energy

    def at(self, gpu: GpuModel, clock_mhz: int, limit_w: float) -> OperatingPoint:
        """The operation with this clock locked; the power limit is the measurement's."""
        seconds = joules = 0.0
        for curve in self.curves:
            clocks = curve.clock_mhz[::-1]  # highest clock first in the curve, interp wants them rising
            stretch = max(1.0, float(clocks[0]) / clock_mhz)
            seconds += float(np.interp(clock_mhz, clocks, curve.time_s[::-1])) * stretch
            joules += float(np.interp(clock_mhz, clocks, curve.energy_j[::-1])) * stretch
        power = joules / seconds if seconds > 0 else 0.0
        return OperatingPoint(seconds * self.share, power, clock_mhz, False)


@dataclass(frozen=True)
class Workload:
    """Costs of a job on one GPU model; all GPUs of a stage are alike.

    Attributes:
        gpu: GPU model.
        stages, chunks: pipeline stages and model chunks of each.
        costs: by (stage, chunk, kind); chunk is -1 for all but forward and backward. What is missing takes no time.
        transfer_s: one point-to-point transfer.
        blocking: power in W while waiting in communication, or its curve by clock.
        scale_energy: factor on every power, for what-if runs; throttling is decided before.
    """

    gpu: GpuModel
    stages: int
    chunks: int
    costs: Mapping[tuple[int, int, Kind], Cost]
    transfer_s: float = 0.0
    blocking: float | Mapping[int, Cost] = field(default=0.0)
    scale_energy: float = 1.0

    @classmethod
    def from_model(
        cls,
        gpu: GpuModel,
        model: LlmModel | str,
        sizes: Sizes,
        micro_batch: int = 1,
        seq: int | None = None,
        dtype: Dtype = "bf16",
    ) -> "Workload":
        """Costs computed from a model's shape, by name or given; ``seq`` defaults to the model's own.

        The layers of the model are divided over the stages and chunks in use.

        Raises:
            UserError: unknown model, or one that is too shallow for the stages.
        """
        shape = named(model) if isinstance(model, str) else model
        source = ModelCosts(gpu, shape, sizes, micro_batch, seq or shape.seq, dtype)
        costs: dict[tuple[int, int, Kind], Cost] = {}
        for stage in range(sizes.stages):
            for chunk in range(sizes.chunks):
                costs[stage, chunk, "forward"] = PhysicalCost(source.forward(stage, chunk))
                costs[stage, chunk, "backward"] = PhysicalCost(source.backward(stage, chunk))
            costs[stage, -1, "grad-sync"] = PhysicalCost(source.grad_sync(stage))
            costs[stage, -1, "optimizer"] = PhysicalCost(source.optimizer(stage))
        transfer_s = source.transfer_s() if sizes.stages > 1 else 0.0
        return cls(gpu, sizes.stages, sizes.chunks, costs, transfer_s, gpu.blocking_power_w)

    @classmethod
    def from_profile(cls, profile: Profile, gpu: GpuModel, stages: int | None = None, chunks: int = 1) -> "Workload":
        """Costs interpolated from a measured profile; whole-stage curves are split evenly over the chunks.

        ``stages`` is the pipeline size of the run: it has to be the profile's. Without a blocking power of its own, the
        profile is completed by the GPU model's.

        Raises:
            UserError: the profile has another number of stages, or lacks the forward or backward of one.
        """
        found = 1 + max((stage for stage, _, _ in profile.curves), default=-1)
        if not found or (stages is not None and stages != found):
            raise UserError(f"the profile has {found} stages, the run {stages or 1}: use a profile of the same pipeline size")
        costs: dict[tuple[int, int, Kind], Cost] = {}
        blocking: dict[int, Cost] = {}
        for stage in range(found):
            costs.update(_measured_stage(profile, stage, chunks))
            if curve := profile.curves.get((stage, -1, "blocking")):
                blocking[stage] = MeasuredCost((curve,))
        constant = profile.blocking_power_w if profile.blocking_power_w is not None else gpu.blocking_power_w
        transfers = [float(curve.time_s[0]) for (_, _, name), curve in profile.curves.items() if name == "p2p"]
        return cls(gpu, found, chunks, costs, max(transfers, default=0.0), blocking if len(blocking) == found else constant)

    def point(self, stage: int, chunk: int, kind: Kind, clock_mhz: int, limit_w: float) -> OperatingPoint:
        """One operation at a locked clock under a power limit; no time at all where the workload has no such operation."""
        cost = self.costs.get((stage, chunk if kind in _PER_CHUNK else -1, kind))
        if cost is None:
            return OperatingPoint(0.0, self.blocking_power_w(stage, clock_mhz), clock_mhz, False)
        point = cost.at(self.gpu, clock_mhz, limit_w)
        return point._replace(power_w=point.power_w * self.scale_energy)

    def blocking_power_w(self, stage: int, clock_mhz: int) -> float:
        """Watts of a GPU of this stage that waits in communication."""
        if isinstance(self.blocking, Mapping):
            return self.scale_energy * self.blocking[stage].at(self.gpu, clock_mhz, 0.0).power_w
        return self.scale_energy * self.blocking


def _measured_stage(profile: Profile, stage: int, chunks: int) -> Iterator[tuple[tuple[int, int, Kind], Cost]]:
    """All operations of one stage that the profile knows."""
    for kind in _PER_CHUNK:
        whole = profile.curves.get((stage, -1, kind))
        for chunk in range(chunks):
            own = profile.curves.get((stage, chunk, kind))
            if own is not None:
                yield (stage, chunk, kind), MeasuredCost((own,))  # type: ignore[misc]
            elif whole is not None:
                yield (stage, chunk, kind), MeasuredCost((whole,), 1.0 / chunks)  # type: ignore[misc]
            else:
                raise UserError(f"the profile has no {kind} of stage {stage} chunk {chunk}: measure it, or give the whole stage's")
    steps = {name: curve for (at, _, name), curve in profile.curves.items() if at == stage and name not in _PER_CHUNK}
    if "grad-sync" in steps:
        yield (stage, -1, "grad-sync"), MeasuredCost((steps["grad-sync"],))
    if "optimizer" in steps:
        yield (stage, -1, "optimizer"), MeasuredCost((steps["optimizer"],))
    others = tuple(curve for name, curve in steps.items() if name not in _NOT_STEPS)
    if others:
        yield (stage, -1, "other"), MeasuredCost(others)
