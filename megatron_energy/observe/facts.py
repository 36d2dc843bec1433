"""What a report says about the plan, in plain values: the planner's own types stay below."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class PlanFacts:
    """A plan and where its files are. None: not known, or no such file.

    Attributes:
        policy: what was asked for, as on the command line.
        bound_saved_percent: what the best possible plan would save at the same deadline.
        expected_time_s: iteration time that the plan expects.
        expected_energy_j: J per iteration that the plan expects of all GPUs.
        switches_mean, switches_max: clock switches per GPU and iteration.
        plan_path, timeline_path, tensorboard_dir: files for a person to open.
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
