"""What a report says about the plan and the run, in plain values: the planner's own types stay below."""

from dataclasses import dataclass
from pathlib import Path

from megatron_energy.observe.resolution import COUNTER_STEP_S


@dataclass(frozen=True)
class PlanFacts:
    """A plan, where its files are, and how it was measured. None: not known, or no such file.

    Attributes:
        policy: what was asked for, as on the command line.
        bound_saved_percent: what the best possible plan would save at the same deadline.
        expected_time_s: iteration time that the plan expects.
        expected_energy_j: J per iteration that the plan expects of all GPUs.
        switches_mean, switches_max: clock switches per GPU and iteration.
        plan_path, timeline_path, tensorboard_dir: files for a person to open.
        plan_policy: how the plan was made, where that is not ``policy``: of a dry run, or of a plan that was given.
        expected_saved_percent, expected_slowdown_percent: what the plan expects against the replayed baseline.
        off_reason: why clocks were given back.
        microbatches: per iteration, where the report is about the iterations with this number only; None: about all.
        counter_step_s: time between two steps of the energy counter.
        too_short: what to do where iterations are too short for the counter, as a sentence.
    """

    policy: str
    bound_saved_percent: float | None = None
    expected_time_s: float | None = None
    expected_energy_j: float | None = None
    switches_mean: float | None = None
    switches_max: int | None = None
    plan_path: Path | str | None = None
    timeline_path: Path | str | None = None
    tensorboard_dir: Path | str | None = None
    plan_policy: str | None = None
    expected_saved_percent: float | None = None
    expected_slowdown_percent: float | None = None
    off_reason: str | None = None
    microbatches: int | None = None
    counter_step_s: float = COUNTER_STEP_S
    too_short: str = "Train more iterations."

    @property
    def dry_run(self) -> bool:
        """Whether there is a plan that is not run on purpose."""
        return self.policy == "dry-run" and self.expected_energy_j is not None
