"""The schedule call that is running, as far as the hooks need to know it."""

from collections.abc import Mapping, Sequence
from typing import Any


class ScheduleCall:
    """One call of a forward_backward function.

    Attributes:
        forward_only: an evaluation.
        microbatches: microbatches of the call.
        reduces_in_backward: gradients of a chunk are reduced as its last backward makes them, without a call of grad_sync_func.
    """

    __slots__ = ("_chunks", "_forwards", "forward_only", "microbatches", "reduces_in_backward")

    def __init__(self, models: Sequence[Any], arguments: Mapping[str, Any], reduces_in_backward: bool = False) -> None:
        self.forward_only = bool(arguments.get("forward_only"))
        self.microbatches = int(arguments["num_microbatches"])
        self.reduces_in_backward = reduces_in_backward and not self.forward_only
        self._chunks = {id(model): chunk for chunk, model in enumerate(models)}
        self._forwards = [0] * len(models)

    def chunk_of(self, model: Any) -> int | None:
        """Which of the call's chunks ``model`` is."""
        return self._chunks.get(id(model))

    def count_forward(self, chunk: int, microbatch: int | None) -> int:
        """Count a forward; its microbatch as Megatron gave it, else the chunk's count so far."""
        index = self._forwards[chunk]
        self._forwards[chunk] = index + 1
        return index if microbatch is None else microbatch


class Tracker:
    """Which call runs now.

    Attributes:
        recorded: the running call, if its steps are recorded; None outside of schedules and in refused ones.
    """

    __slots__ = ("recorded",)

    def __init__(self) -> None:
        self.recorded: ScheduleCall | None = None
