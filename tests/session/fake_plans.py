"""A plan without clocks, and iterations of which only the time is known: what the guard's course needs of a run."""

from dataclasses import dataclass

from megatron_energy.session.directive import Directive
from megatron_energy.session.signals import QUIET, Signals


@dataclass(frozen=True)
class FakePlan:
    """Looks to the course like :class:`~megatron_energy.session.planned.PlannedRun`."""

    version: int = 1

    def directive(self, rank: int) -> Directive:
        """Of any rank."""
        return Directive("planned", plan_version=self.version)

    activation = directive


@dataclass(slots=True)
class FakeIteration:
    """Looks to the course like :class:`~megatron_energy.session.findings.IterationData`."""

    time_s: float
    signals: Signals = QUIET
    emulated: bool = False
