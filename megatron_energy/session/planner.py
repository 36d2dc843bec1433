"""Makes the plan of a run, or checks one that was given, and turns it into directives for ranks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from megatron_energy.observe.plan_text import PlannedGpus
from megatron_energy.profiles.profile import Profile
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.records.steps import Program
from megatron_energy.session.directive import Directive
from megatron_energy.session.facts import JobFacts
from megatron_energy.session.options import EnergyOptions


@dataclass(frozen=True)
class PlannedRun:
    """stub"""


class Planner:
    """stub"""

    def __init__(self, options: EnergyOptions, facts: JobFacts, clocks_mhz: Sequence[int], say: Callable[[str], None]) -> None:
        self.options = options

    def check(self) -> None:
        """stub"""
