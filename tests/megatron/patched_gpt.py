"""tiny_gpt.py on a megatron-core that may be patched: what the hooks record, and what the patch tells of every operation."""

from typing import Any

import collector  # beside this script
import tiny_gpt
from megatron.core.pipeline_parallel import schedules

from megatron_energy.megatron.patched_operations import HOOK
from megatron_energy.records.steps import ClockRequest
from megatron_energy.session.directive import TransitionPoint

_points: list[list[Any]] = []
_installed = collector.installed


class RequestsEverywhere(dict[TransitionPoint, list[ClockRequest]]):
    """A request at every point that is reached, each point with a clock of its own: the program shows where it was handed over."""

    def __bool__(self) -> bool:
        return True

    def get(self, point: TransitionPoint, default: Any = None) -> list[ClockRequest]:
        return self.setdefault(point, [ClockRequest(len(self) + 1)])


class Listener:
    """A collector that also reports the points that the patch tells of, in order, and which functions are wrapped."""

    def __init__(self) -> None:
        self.collector = _installed()
        self.collector.requests = RequestsEverywhere()
        hook = getattr(schedules, HOOK, None)
        if hook is not None and not hasattr(hook, "listening"):
            setattr(schedules, HOOK, listening(hook))
        _points.clear()

    def report(self) -> dict[str, Any]:
        wrapped = [name for name in ("forward_step", "backward_step") if hasattr(getattr(schedules, name), "__wrapped__")]
        return {**self.collector.report(), "points": list(_points), "wrapped": wrapped}


def listening(hook: Any) -> Any:
    def reached(direction: str, role: str, chunk: int, microbatch: int, side: str, output: Any) -> None:
        _points.append([direction, role, chunk, microbatch, side])
        hook(direction, role, chunk, microbatch, side, output)

    reached.listening = True  # type: ignore[attr-defined]
    return reached


if __name__ == "__main__":
    collector.installed = Listener  # which tiny_gpt asks for
    tiny_gpt.main()
