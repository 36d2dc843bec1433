"""A runtime for tests: it keeps what it is told."""

import dataclasses
from typing import Any

from megatron_energy.megatron import attach
from megatron_energy.megatron.runtime_protocol import Requests
from megatron_energy.records import steps
from megatron_energy.records.steps import Program
from megatron_energy.session.facts import RankFacts
from megatron_energy.session.options import EnergyOptions


class Collector:
    """Collects facts, programs, reasons and log calls."""

    def __init__(self, requests: Requests | None = None, evaluation_requests: Requests | None = None) -> None:
        self.requests: Requests = requests or {}
        self.evaluation_requests: Requests = evaluation_requests or {}
        self.empty()

    def empty(self) -> None:
        """Forget what was collected."""
        self.facts: list[RankFacts] = []
        self.programs: list[tuple[bool, Program]] = []
        self.broken: list[str] = []
        self.logged: list[tuple[int, bool]] = []

    def on_schedule(self, facts: RankFacts) -> None:
        self.facts.append(facts)

    def on_iteration(self, program: Program, evaluation: bool) -> None:
        self.programs.append((evaluation, program))

    def on_broken(self, reason: str) -> None:
        self.broken.append(reason)

    def on_log(self, iteration: int, writer: Any) -> None:
        self.logged.append((iteration, writer is not None))

    def report(self) -> dict[str, Any]:
        """All of it as plain types."""
        return {
            "facts": [dataclasses.asdict(facts) for facts in self.facts],
            "programs": [{"evaluation": evaluation, "steps": [to_plain(s) for s in program]} for evaluation, program in self.programs],
            "broken": self.broken,
            "logged": self.logged,
        }


_collectors: list[Collector] = []


def installed() -> Collector:
    """This process's collector, hooked in at the first call and emptied at every call."""
    if not _collectors:
        _collectors.append(Collector())
        attach.install(EnergyOptions(policy="measure"), _collectors[0])
    _collectors[0].empty()
    return _collectors[0]


def to_plain(step: steps.Step) -> list[Any]:
    """A step as a list: its type's name, then its fields."""
    return [type(step).__name__, *dataclasses.astuple(step)]


def from_plain(plain: list[Any]) -> steps.Step:
    """The step that :func:`to_plain` made this of."""
    step: steps.Step = getattr(steps, plain[0])(*plain[1:])
    return step
