"""Settling: what an iteration that Megatron executed on CPUs would have taken and used on the emulated GPUs."""

from collections.abc import Sequence

from megatron_energy.emulation.settle.gpu import Costs, Gpu
from megatron_energy.emulation.settle.requests import RequestLatency, RequestQueue
from megatron_energy.emulation.settle.simulation import Simulation
from megatron_energy.emulation.settle.wiring import Wiring
from megatron_energy.emulation.workload import Workload
from megatron_energy.records.iteration import RankIteration
from megatron_energy.records.steps import Program


class Settler:
    """All GPUs of a job. State (virtual time, clocks, requests under way, energy) is kept from iteration to iteration.

    It executes what was recorded: an operation begins when the rank's steps before it are done and its lock-step group is there;
    a transfer takes place when both sides have posted it. It knows no schedule and no plan. Deterministic.

    Example::

        settler = Settler(workload, Wiring.grid(stages=4, tensor=2, data=2))
        records = settler.settle(programs, iteration=1)      # one RankIteration per rank
        settler.gpus[3].reading_mj                           # what rank 3's energy counter shows now
    """

    def __init__(
        self,
        workload: Workload,
        wiring: Wiring,
        latency: RequestLatency | None = None,
        power_limit_w: float | None = None,
        start_s: float = 0.0,
    ) -> None:
        """All GPUs start at their maximum clock.

        Args:
            workload: time and power of the operations.
            wiring: the ranks.
            latency: of clock requests; default: the catalog's for the workload's GPU.
            power_limit_w: of every GPU; default: the GPU's default limit.
            start_s: virtual time at the beginning.
        """
        if max(wiring.stage) >= workload.stages:
            raise ValueError(f"the wiring has {max(wiring.stage) + 1} stages, the workload {workload.stages}")
        gpu = workload.gpu
        limit_w = gpu.power_limit_default_w if power_limit_w is None else power_limit_w
        self.workload, self.wiring = workload, wiring
        self.gpus = [Gpu(rank, stage, gpu.sm_clock_max_mhz, limit_w, start_s) for rank, stage in enumerate(wiring.stage)]
        self._queue = RequestQueue(wiring.node, RequestLatency.of(gpu) if latency is None else latency)
        self._costs = Costs(workload)

    def settle(self, programs: Sequence[Program], iteration: int, evaluation: bool = False) -> list[RankIteration]:
        """Execute one program per rank and return their records, by rank.

        Raises:
            SettleError: the programs contradict each other or wait for ever. The settler is of no use afterwards.
        """
        if len(programs) != self.wiring.size:
            raise ValueError(f"{len(programs)} programs for {self.wiring.size} ranks")
        simulation = Simulation(self.wiring, self.workload, self._costs, self.gpus, self._queue, iteration)
        records = simulation.run(programs)
        for record in records:
            record.evaluation = evaluation
        return records

    def set_clock(self, rank: int, clock_mhz: int) -> None:
        """A clock is set from outside, between iterations, in force at once (0: the GPU's own choice)."""
        model = self.workload.gpu
        self.gpus[rank].clock_mhz = model.supported_clock_mhz(clock_mhz) if clock_mhz else model.sm_clock_max_mhz

    def set_power_limit(self, rank: int, limit_w: float) -> None:
        """The power limit from the next iteration on. A workload from a measured profile ignores it."""
        self.gpus[rank].limit_w = limit_w

    def set_stretch(self, rank: int, factor: float) -> None:
        """From the next iteration on this GPU's computations take ``factor`` times as long: a straggler."""
        self.gpus[rank].stretch = factor
