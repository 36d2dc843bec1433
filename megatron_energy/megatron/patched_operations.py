"""Forwards and backwards of a patched Megatron, whose schedules call a hook at every transition point: nothing is wrapped."""

from typing import Any

from megatron_energy.megatron.imports import replace
from megatron_energy.megatron.operations import end_backward, first_tensor
from megatron_energy.megatron.recorder import Recorder
from megatron_energy.megatron.schedule_call import Tracker

HOOK = "energy_hook_v1"
"""What the patch adds to the schedules' module. A patch that calls it otherwise gives it another name, so that none is misread."""

OTHER_OUTPUT = "the patched schedule told of another backward than its output belongs to: run `megatron-energy patch verify`"


def is_patched(schedules: Any) -> bool:
    """Whether the schedules of module ``schedules`` call the hook."""
    return hasattr(schedules, HOOK)


def listen(schedules: Any, recorder: Recorder, tracker: Tracker) -> None:
    """Record the operations of the patched module ``schedules``."""

    def reached(direction: str, role: str, chunk: int, microbatch: int, side: str, output: Any) -> None:
        """``role`` (warm-up, steady, cool-down) follows from the place of the operation, which is recorded."""
        call = tracker.recorded
        if call is None:
            return
        if direction == "forward":
            if side == "begin":
                recorder.begin_forward(chunk, microbatch)
            else:
                recorder.end_forward(chunk, microbatch, None if call.forward_only else first_tensor(output))
        elif side == "begin":
            recorder.begin_backward(first_tensor(output))
        elif end_backward(call, recorder) != (chunk, microbatch):
            recorder.fail(OTHER_OUTPUT)

    replace(schedules, **{HOOK: reached})
