"""The pipeline schedule of one training iteration, as Megatron runs it."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from megatron_energy.errors import UserError

P2pMode: TypeAlias = Literal["ideal", "overlap", "overlap-wait", "batched"]
"""How point-to-point transfers constrain the order of events.

``ideal``: data dependencies only, sends are free (published figures use it). ``overlap``: overlap_p2p_comm, the previous
send is waited for (megatron-core <= 0.17, later ones without deallocation). ``overlap-wait``: overlap_p2p_comm, a send is
waited for at once (core >= 0.18 with deallocate_pipeline_outputs). ``batched``: no overlap.
"""

MOST_OPERATIONS = 10_000_000
"""Of one iteration: a thousand times the largest jobs of today. Beyond it a size is a slip of the pen, which no graph can be built for."""

P2P_MODES: tuple[P2pMode, ...] = get_args(P2pMode)


@dataclass(frozen=True)
class Schedule:
    """Megatron's interleaved (chunks > 1) or plain 1F1B (chunks == 1) schedule of one pipeline.

    Attributes:
        stages: pipeline-parallel size; 1 means no pipeline.
        chunks: model chunks per stage (virtual pipeline size); the last stage's chunk c feeds the first stage's chunk c + 1.
        microbatches: microbatches per pipeline and iteration.
        group_size: Megatron's microbatch_group_size_per_vp_stage; None means ``stages``. Without interleaving it does not matter.
        p2p: communication mode, see :data:`P2pMode`. It does not matter for plain 1F1B, which always blocks.
        warmup_flush: overlap_p2p_comm_warmup_flush (overlap modes only): warm-up and cool-down prefetch receives.
        forward_only: evaluation.

    Raises:
        UserError: sizes that Megatron would refuse.
    """

    stages: int
    microbatches: int
    chunks: int = 1
    group_size: int | None = None
    p2p: P2pMode = "overlap"
    warmup_flush: bool = False
    forward_only: bool = False

    def __post_init__(self) -> None:
        for name in ("stages", "microbatches", "chunks"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}")
        operations = 2 * self.stages * self.chunks * self.microbatches
        if operations > MOST_OPERATIONS:
            raise UserError(
                f"{self.stages} stages x {self.chunks} chunks x {self.microbatches} microbatches make {operations:,} operations, "
                f"more than the {MOST_OPERATIONS:,} that can be planned: check these sizes"
            )
        if self.p2p not in P2P_MODES:
            raise UserError(f"unknown p2p mode '{self.p2p}': choose one of {', '.join(P2P_MODES)}")
        if self.warmup_flush and (self.chunks == 1 or self.p2p not in ("overlap", "overlap-wait")):
            raise UserError("the warm-up flush needs several chunks and p2p mode overlap or overlap-wait: turn it off or change these")
        if self.chunks > 1:
            self._check_interleaving()

    def _check_interleaving(self) -> None:
        """Refuse what Megatron's interleaved schedule and its argument parser refuse."""
        if self.stages == 1:
            raise UserError(f"{self.chunks} chunks need a pipeline of at least 2 stages: use 1 chunk, or more stages")
        if self.stages == 2 and self.p2p == "batched":
            raise UserError(
                "2 stages with several chunks need overlapped p2p (Megatron refuses batched): use p2p mode overlap or overlap-wait"
            )
        if not self.stages <= self.group <= self.microbatches:
            raise UserError(
                f"group size {self.group} must be between {self.stages} stages and {self.microbatches} microbatches: "
                f"change the group size or the number of microbatches"
            )
        remainder = self.microbatches % self.group
        if 0 < remainder < self.stages:
            raise UserError(
                f"{self.microbatches} microbatches in groups of {self.group} leave {remainder}: choose sizes that leave none or "
                f"at least {self.stages} (one per stage) for the last group"
            )

    @property
    def interleaved(self) -> bool:
        """Whether stages run several model chunks."""
        return self.chunks > 1

    @property
    def group(self) -> int:
        """Microbatches that one chunk runs in a row before the next chunk takes over (interleaved schedules only)."""
        return self.stages if self.group_size is None else self.group_size
