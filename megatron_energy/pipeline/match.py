"""Which communication mode a run uses: from what it recorded. Its flags alone leave a choice."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from megatron_energy.errors import UserError
from megatron_energy.pipeline.programs import program
from megatron_energy.pipeline.schedule import P2pMode, Schedule
from megatron_energy.records.steps import Compute, Post, Program, Step, Wait

CANDIDATES: tuple[tuple[P2pMode, bool], ...] = (
    ("overlap", False),
    ("overlap-wait", False),
    ("batched", False),
    ("overlap", True),
    ("overlap-wait", True),
)
"""Communication mode and warm-up flush, in the order in which :func:`match` tries them."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a recorded program leaves the program that a schedule prescribes.

    Attributes:
        schedule: the prescribed schedule.
        stage: pipeline stage.
        position: index of the step among operations, posts and waits.
        expected: the prescribed step; None: the program should have ended.
        found: the recorded step; None: the program ended early.
    """

    schedule: Schedule
    stage: int
    position: int
    expected: Step | None
    found: Step | None

    def __str__(self) -> str:
        mode = self.schedule.p2p + (" with warm-up flush" if self.schedule.warmup_flush else "")
        expected, found = self.expected or "the end", self.found or "the end"
        return f"mode {mode}: stage {self.stage}, step {self.position}: expected {expected}, found {found}"


class ScheduleMismatch(Exception):
    """The recorded programs are those of no known communication mode.

    Attributes:
        differences: per mode tried, its first difference; the mode that agrees longest comes first.
    """

    def __init__(self, differences: Sequence[Difference]) -> None:
        super().__init__(f"the recorded programs match no known communication mode; closest is {differences[0]}")
        self.differences = tuple(differences)


def match(programs: Sequence[Program], sizes: Schedule) -> Schedule:
    """The schedule whose programs equal the recorded ones.

    Only operations, posts and waits are compared. Where several modes prescribe the same programs (plain 1F1B: all of them),
    the first of :data:`CANDIDATES` is taken.

    Args:
        programs: one per stage, of one replica.
        sizes: stages, chunks, microbatches, group size and forward-only of the run; its own mode is ignored.

    Raises:
        ScheduleMismatch: no mode fits; says which stage and step differ.
        ValueError: not one program per stage.
    """
    if len(programs) != sizes.stages:
        raise ValueError(f"{len(programs)} programs for {sizes.stages} stages")
    recorded = [[step for step in steps if isinstance(step, Compute | Post | Wait)] for steps in programs]
    differences = []
    for schedule in candidates(sizes):
        difference = first_difference(recorded, schedule)
        if difference is None:
            return schedule
        differences.append(difference)
    raise ScheduleMismatch(sorted(differences, key=lambda difference: -difference.position))


def candidates(sizes: Schedule) -> list[Schedule]:
    """Schedules of these sizes in every communication mode that Megatron allows for them."""
    neutral = replace(sizes, p2p="overlap", warmup_flush=False)
    found = []
    for p2p, warmup_flush in CANDIDATES:
        try:
            found.append(replace(neutral, p2p=p2p, warmup_flush=warmup_flush))
        except UserError:
            continue  # this mode does not exist at these sizes
    return found


def first_difference(recorded: Sequence[Sequence[Step]], schedule: Schedule) -> Difference | None:
    """The earliest step, over all stages, at which recorded operations, posts and waits differ from the schedule's; None: equal."""
    earliest: Difference | None = None
    for stage, steps in enumerate(recorded):
        prescribed = program(schedule, stage)
        length = max(len(prescribed), len(steps))
        expected_and_found = zip(_padded(prescribed, length), _padded(steps, length), strict=True)
        position = next((i for i, (expected, found) in enumerate(expected_and_found) if expected != found), None)
        if position is not None and (earliest is None or position < earliest.position):
            earliest = Difference(schedule, stage, position, _padded(prescribed, length)[position], _padded(steps, length)[position])
    return earliest


def _padded(steps: Sequence[Step], length: int) -> list[Step | None]:
    return [*steps, *[None] * (length - len(steps))]


def possible_modes(*, overlap_p2p_comm: bool, deallocate_pipeline_outputs: bool) -> tuple[P2pMode, ...]:
    """The modes that megatron-core's own flags can lead to, before anything was recorded.

    ================ =========================== =======================
    overlap_p2p_comm deallocate_pipeline_outputs mode
    ================ =========================== =======================
    yes              no                          overlap
    yes              yes                         overlap or overlap-wait
    no               either                      batched
    ================ =========================== =======================

    With overlap and deallocation, megatron-core 0.18 and later wait for a send at once, earlier ones one operation later; which one
    it is, :func:`match` tells from what a run records. Megatron-LM's training script always deallocates; it turns
    ``overlap_p2p_comm`` on by default and off without interleaving, where the mode does not matter.
    """
    if not overlap_p2p_comm:
        return ("batched",)
    return ("overlap", "overlap-wait") if deallocate_pipeline_outputs else ("overlap",)
