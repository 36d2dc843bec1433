"""A workload whose times and powers can be worked out in the head, and short names for steps."""

from dataclasses import dataclass

from megatron_energy.emulation.catalog import GpuModel, load
from megatron_energy.emulation.settle import RequestLatency, Settler, Wiring
from megatron_energy.emulation.workload import OperatingPoint, Workload
from megatron_energy.records.steps import Compute, Post, Wait

GPU = load("a100-sxm4-80gb")  # 210 to 1410 MHz; half the maximum is 705
FULL, HALF = 1410, 705
BLOCKING_W = 80.0
NO_LATENCY = RequestLatency()


@dataclass(frozen=True)
class Simple:
    """``seconds`` and ``watts`` at the maximum clock; time goes with 1/f, power with f. The cap halves the clock, or does not."""

    seconds: float
    watts: float = 400.0

    def at(self, gpu: GpuModel, clock_mhz: int, limit_w: float) -> OperatingPoint:
        capped = clock_mhz > HALF and self.watts * clock_mhz / FULL > limit_w
        clock = HALF if capped else clock_mhz
        return OperatingPoint(self.seconds * FULL / clock, self.watts * clock / FULL, clock, capped)


def workload(
    stages: int = 1, chunks: int = 1, *, f: float = 1.0, b: float = 2.0, sync: float = 0.0, opt: float = 0.0, transfer: float = 0.0
):
    """Seconds at the maximum clock: forward, backward, grad sync, optimizer, one transfer."""
    costs = {}
    for stage in range(stages):
        for chunk in range(chunks):
            costs[stage, chunk, "forward"] = Simple(f)
            costs[stage, chunk, "backward"] = Simple(b)
        costs[stage, -1, "grad-sync"] = Simple(sync, 200.0)
        costs[stage, -1, "optimizer"] = Simple(opt, 300.0)
    return Workload(GPU, stages, chunks, costs, transfer, BLOCKING_W)


def settler(job: Workload, wiring: Wiring, latency: RequestLatency = NO_LATENCY, limit_w: float = 1000.0) -> Settler:
    return Settler(job, wiring, latency, limit_w)


def fwd(microbatch: int = 0, chunk: int = 0) -> Compute:
    return Compute("forward", chunk, microbatch)


def bwd(microbatch: int = 0, chunk: int = 0) -> Compute:
    return Compute("backward", chunk, microbatch)


def blocking(transfer, index: int = 0) -> list[Post | Wait]:
    """Posted and waited for at once."""
    return [Post(transfer, index), Wait(transfer, index)]


def times(record) -> list[tuple[str, float, float]]:
    """Spans as (activity, start, end), rounded to nanoseconds."""
    return [(span.activity, round(span.start_s, 9), round(span.end_s, 9)) for span in record.spans]
