"""A run on emulated GPUs: recorded programs are settled in virtual time, and every GPU's counters advance accordingly."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from megatron_energy.emulation.catalog import load
from megatron_energy.emulation.costs import Sizes
from megatron_energy.emulation.install import install, parse_specification
from megatron_energy.emulation.models import LlmModel, named
from megatron_energy.emulation.settle.gpu import Gpu
from megatron_energy.emulation.settle.requests import RequestLatency
from megatron_energy.emulation.settle.settler import Settler
from megatron_energy.emulation.settle.wiring import Wiring
from megatron_energy.emulation.state import NodeState, state_path
from megatron_energy.emulation.workload import Workload
from megatron_energy.errors import UserError
from megatron_energy.gpus.device import EventReason
from megatron_energy.gpus.meter import EnergyMeter
from megatron_energy.gpus.nvml import NvmlGpu
from megatron_energy.profiles.files import load_profile
from megatron_energy.session.facts import JobFacts, RankFacts
from megatron_energy.session.options import EnergyOptions

NODES = "emulated-nodes"
"""Folder in RUN_DIR with one state file per emulated node."""


@dataclass(frozen=True)
class Advance:
    """How far one GPU got in an iteration: what its emulated NVML will show from now on.

    Nobody can look at an emulated GPU in the middle of an iteration, so clock, power and reasons tell about the whole of it.

    Attributes:
        now_s: virtual time.
        counter_mj: reading of the energy counter.
        clock_mhz, power_w: means of the iteration.
        reasons: why its clock was below the maximum.
    """

    now_s: float
    counter_mj: int
    clock_mhz: float
    power_w: float
    reasons: EventReason = EventReason.NONE

    @classmethod
    def of(cls, gpu: Gpu, max_mhz: int) -> "Advance":
        """What a settled GPU, whose highest clock is ``max_mhz``, has got to."""
        reasons = EventReason.POWER_CAP if gpu.capped else EventReason.NONE
        if gpu.clock_mhz < max_mhz:
            reasons |= EventReason.LOCKED_CLOCKS
        return cls(gpu.time_s, gpu.reading_mj, gpu.ran_mhz or gpu.clock_mhz, gpu.power_w, reasons)


def on_emulated_nodes(facts: Sequence[RankFacts], gpus_per_node: int) -> JobFacts:
    """The job with its ranks on emulated nodes of so many GPUs, in the order of the ranks.

    Where the job has several hosts and each of them is one such node, nodes have the names of their hosts; else node0, node1, ...
    """
    nodes = [facts[first : first + gpus_per_node] for first in range(0, len(facts), gpus_per_node)]
    hosts = [{f.node for f in members} for members in nodes]
    one_each = len(nodes) > 1 and len(set().union(*hosts)) == len(nodes) == sum(map(len, hosts))
    names = [host.pop() for host in hosts] if one_each else [f"node{number}" for number in range(len(nodes))]
    placed = [
        dataclasses.replace(f, node=name, local_rank=index)
        for name, members in zip(names, nodes, strict=True)
        for index, f in enumerate(members)
    ]
    return JobFacts(tuple(placed))


def gpus_per_node(options: EnergyOptions, facts: JobFacts) -> int:
    """GPUs on the fullest node."""
    return min(options.emulated_gpus_per_node, facts.world_size)


def wiring(facts: JobFacts) -> Wiring:
    """Who waits for whom, from Megatron's own coordinates."""
    place = {(r.stage, r.data_rank, r.context_rank, r.tensor_rank): r.rank for r in facts.ranks}

    def neighbour(r: RankFacts, distance: int) -> int:
        return place[(r.stage + distance) % r.pipeline, r.data_rank, r.context_rank, r.tensor_rank]

    return Wiring(
        stage=facts.stage_of_rank,
        next_rank=[neighbour(r, 1) for r in facts.ranks],
        prev_rank=[neighbour(r, -1) for r in facts.ranks],
        lock_step=facts.lockstep_groups(),
        data_parallel=facts.groups("stage", "tensor_rank"),  # gradients are reduced over data and context ranks
        node=[r.node for r in facts.ranks],
    )


def workload(options: EnergyOptions, facts: JobFacts) -> Workload:
    """Times and powers of the emulated GPUs: of a named model, of a profile file (.csv), or of the model in training.

    Raises:
        UserError: unknown GPU or model, a model too shallow for the pipeline, a profile that does not fit it.
    """
    gpu, a = load(options.emulated_gpu), facts.any
    name = options.emulated_model
    if name is not None and name.endswith(".csv"):
        return Workload.from_profile(load_profile(Path(name)), gpu, stages=a.pipeline, chunks=a.chunks)
    sizes = Sizes(
        stages=a.pipeline,
        chunks=a.chunks,
        tensor=a.tensor,
        context=a.context,
        data=a.data,
        gpus_per_node=options.emulated_gpus_per_node,
        sequence_parallel=a.sequence_parallel,
    )
    shape = named(name) if name is not None else _in_training(a)
    micro_batch = options.emulated_micro_batch if name is not None else max(a.microbatch_size, 1)
    return Workload.from_model(gpu, shape, sizes, micro_batch=micro_batch)


def _in_training(facts: RankFacts) -> LlmModel:
    try:
        return LlmModel(
            name="the model in training",
            layers=facts.layers,
            hidden=facts.hidden_size,
            heads=facts.attention_heads,
            ffn=facts.ffn_hidden_size,
            vocab=facts.vocabulary,
            seq=facts.sequence_length,
        )
    except UserError as error:
        raise UserError(f"the sizes of the model in training are not known ({error}): name one with --energy-emulated-model") from error


def settler(options: EnergyOptions, facts: JobFacts) -> Settler:
    """The simulator that executes recorded programs; on the home rank."""
    load_of_job = workload(options, facts)
    latency = RequestLatency.of(load_of_job.gpu) if options.emulated_latency == "catalog" else RequestLatency()
    return Settler(load_of_job, wiring(facts), latency)


def _specification(options: EnergyOptions, facts: RankFacts, world_size: int) -> str:
    first = facts.rank - facts.local_rank
    return f"{load(options.emulated_gpu).key}:{min(options.emulated_gpus_per_node, world_size - first)}"


def create_node(options: EnergyOptions, facts: RankFacts, world_size: int) -> None:
    """Make the emulated node of this rank anew; one rank per node does it, before the others open it."""
    model, count = parse_specification(_specification(options, facts, world_size))
    NodeState.create(state_path(options.run_dir / NODES, facts.node), model, count, node=facts.node, time_source="virtual").close()


class EmulatedDevice:
    """One rank's emulated GPU: advanced after settling, read through pynvml as a real one would be."""

    def __init__(self, options: EnergyOptions, facts: RankFacts, world_size: int) -> None:
        specification = _specification(options, facts, world_size)
        self.node = install(specification, options.run_dir / NODES, time_source="virtual", node=facts.node)
        self.index = facts.local_rank
        self.gpu = NvmlGpu(self.node.uuid(self.index))
        self._now_s = self.node.gpu(self.index).since_s
        self.meter = EnergyMeter(self.gpu, clock=lambda: self._now_s, background=False)
        self.meter.open()

    def advance(self, to: Advance) -> float:
        """Move on to the end of an iteration; joules that the energy counter advanced by, NaN where it did not answer."""
        self.node.advance(
            self.index, now_s=to.now_s, energy_mj=to.counter_mj, clock_mhz=to.clock_mhz, power_w=to.power_w, reasons=int(to.reasons)
        )
        self._now_s = to.now_s
        lap = self.meter.lap()
        return lap.energy_j if lap is not None and lap.energy_j is not None else float("nan")

    def close(self) -> None:
        """The run is over: the GPU is given back."""
        self.meter.close()
        self.gpu.reset_sm_clocks()
