"""What a run is: the sizes that Megatron was started with. Filled in by the Megatron layer, read by everything else."""

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from megatron_energy.pipeline.schedule import Schedule


@dataclass(frozen=True)
class RankFacts:
    """One rank's view of the run, at its first schedule call.

    Attributes:
        rank: global rank.
        tensor, context, expert, data, pipeline: parallel sizes.
        tensor_rank, context_rank, data_rank, stage: this rank's coordinates (``data_rank`` without context parallelism).
        chunks, microbatches, group_size: the schedule (group_size as Megatron resolved it).
        overlap_p2p, warmup_flush, deallocate_outputs: communication flags of Megatron's configuration.
        layers, hidden_size, ffn_hidden_size, attention_heads, vocabulary, sequence_length, microbatch_size: the model in training;
            0 where unknown.
        settings: what else of Megatron's configuration changes the time of operations (precision, attention, experts, recomputation), as
            ``name=value`` words in a fixed order; what is off is left out.
        sequence_parallel: whether activations between stages are split over the tensor-parallel ranks.
        core_version: megatron-core's version.
        node: host name of the rank's node (SLURMD_NODENAME where set).
        local_rank: index of the rank on its node.
        iterations: training iterations that this run will do; 0 where Megatron's training loop does not tell.
        ramp_up: Megatron will change the number of microbatches during the run (a batch size ramp-up).
    """

    rank: int
    tensor: int
    context: int
    expert: int
    data: int
    pipeline: int
    tensor_rank: int
    context_rank: int
    data_rank: int
    stage: int
    chunks: int
    microbatches: int
    group_size: int | None
    overlap_p2p: bool
    warmup_flush: bool
    deallocate_outputs: bool
    layers: int = 0
    hidden_size: int = 0
    ffn_hidden_size: int = 0
    attention_heads: int = 0
    vocabulary: int = 0
    sequence_length: int = 0
    microbatch_size: int = 0
    settings: str = ""
    sequence_parallel: bool = False
    core_version: str = ""
    node: str = "localhost"
    local_rank: int = 0
    iterations: int = field(default=0, compare=False)
    ramp_up: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class JobFacts:
    """All ranks' facts, by rank."""

    ranks: tuple[RankFacts, ...]

    @property
    def any(self) -> RankFacts:
        """A rank's facts where all ranks agree (sizes, schedule, model)."""
        return self.ranks[0]

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def with_microbatches(self, microbatches: int) -> "JobFacts":
        """The same job with another number of microbatches per iteration."""
        return JobFacts(tuple(dataclasses.replace(rank, microbatches=microbatches) for rank in self.ranks))

    @property
    def stage_of_rank(self) -> list[int]:
        """Pipeline stage by rank."""
        return [r.stage for r in self.ranks]

    @property
    def gpus_per_unit(self) -> int:
        """GPUs that run one stage of one replica in lock-step."""
        return self.any.tensor * self.any.context

    def schedule(self, p2p: str = "ideal", warmup_flush: bool | None = None) -> Schedule:
        """The pipeline schedule, in a given communication mode; only overlapped ones of several chunks have a warm-up flush."""
        a = self.any
        flush = (a.warmup_flush if warmup_flush is None else warmup_flush) and a.chunks > 1 and p2p in ("overlap", "overlap-wait")
        group = a.group_size if a.chunks > 1 else None
        return Schedule(a.pipeline, a.microbatches, a.chunks, group, p2p, flush)  # type: ignore[arg-type]

    def ranks_where(self, **coordinates: int) -> list[int]:
        """Ranks whose facts have the given values, such as ``stage=0, data_rank=1``."""
        return [r.rank for r in self.ranks if all(getattr(r, k) == v for k, v in coordinates.items())]

    def replicas(self) -> list[list[int]]:
        """One rank per stage of every pipeline of the job: the ranks that pass activations to each other, by stage."""
        found: dict[tuple[int, ...], list[int]] = {}
        for r in sorted(self.ranks, key=lambda r: r.stage):
            found.setdefault((r.data_rank, r.context_rank, r.tensor_rank), []).append(r.rank)
        return [found[place] for place in sorted(found)]

    def groups(self, *fields: str) -> list[list[int]]:
        """Ranks that agree in the named coordinates, as sorted lists."""
        found: dict[tuple[int, ...], list[int]] = {}
        for r in self.ranks:
            found.setdefault(tuple(getattr(r, f) for f in fields), []).append(r.rank)
        return sorted(found.values())

    def lockstep_groups(self) -> list[list[int]]:
        """Ranks that run every operation together: the tensor and context ranks of one stage of one replica.

        Expert-parallel ranks are data-parallel ranks in Megatron, the neighbouring ones: replicas that exchange tokens between
        their experts in every layer form one group.
        """
        width = max(self.any.expert, self.any.context)
        found: dict[tuple[int, int], list[int]] = {}
        for r in self.ranks:
            found.setdefault((r.stage, r.data_rank * r.context // width), []).append(r.rank)
        return sorted(found.values())

    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that change with the model, its microbatch and its precision: plans are made for one of them."""
        return fingerprint(self.any)


MODEL_FIELDS: Sequence[str] = (
    "layers",
    "hidden_size",
    "ffn_hidden_size",
    "attention_heads",
    "vocabulary",
    "sequence_length",
    "microbatch_size",
    "sequence_parallel",
    "settings",
)


def fingerprint(facts: RankFacts) -> str:
    """See :meth:`JobFacts.fingerprint`."""
    values = dataclasses.asdict(facts)
    return hashlib.sha256(repr([values[name] for name in MODEL_FIELDS]).encode()).hexdigest()[:12]
