"""What the hooks expect of the thing they report to."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from megatron_energy.records.steps import ClockRequest, Program
from megatron_energy.session.directive import TransitionPoint
from megatron_energy.session.facts import RankFacts

Requests = Mapping[TransitionPoint, Sequence[ClockRequest]]


class Runtime(Protocol):
    """A rank's side of the scheduler. Every method is called on every rank, at the same place of the training loop.

    Attributes:
        requests: clock requests of a training iteration, by transition point; read when the iteration begins.
        evaluation_requests: those of a forward-only schedule call; only the point ``("iteration", -1, -1, "begin")`` and
            forward points can occur.
    """

    requests: Requests
    evaluation_requests: Requests

    def on_schedule(self, facts: RankFacts) -> None:
        """Before the first training schedule call, and before one whose facts differ from the last."""
        ...

    def on_iteration(self, program: Program, evaluation: bool) -> None:
        """At the end of the outermost optimizer step, or of a forward-only schedule call.

        ``program`` is what this rank did since the last call, in order. After :meth:`on_broken` it is not to be trusted, but the
        call still comes, so that collectives stay matched.
        """
        ...

    def on_broken(self, reason: str) -> None:
        """The iteration that is running cannot be recorded faithfully; at most once per iteration, on this rank alone."""
        ...

    def on_log(self, iteration: int, writer: Any) -> None:
        """At Megatron's log interval. ``writer`` is its TensorBoard writer, None on all ranks but the last."""
        ...
