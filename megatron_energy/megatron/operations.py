"""Forwards and backwards: wraps schedules.forward_step and schedules.backward_step."""

import functools
from typing import Any

from megatron_energy.megatron.arguments import Argument
from megatron_energy.megatron.imports import replace
from megatron_energy.megatron.recorder import Recorder
from megatron_energy.megatron.schedule_call import ScheduleCall, Tracker

UNKNOWN_MODEL = "a forward ran on a model chunk that is not in the schedule call's list"


def wrap(schedules: Any, recorder: Recorder, tracker: Tracker) -> None:
    """Record the operations of module ``schedules``."""
    _wrap_forward(schedules, recorder, tracker)
    _wrap_backward(schedules, recorder, tracker)


def _wrap_forward(schedules: Any, recorder: Recorder, tracker: Tracker) -> None:
    forward_step = schedules.forward_step
    model, microbatch, stage = (Argument(forward_step, name) for name in ("model", "current_microbatch", "vp_stage"))

    @functools.wraps(forward_step)
    def forward(*args: Any, **kwargs: Any) -> Any:
        call = tracker.recorded
        if call is None:
            return forward_step(*args, **kwargs)
        chunk = stage.of(args, kwargs)
        if chunk is None:
            chunk = call.chunk_of(model.of(args, kwargs))
            if chunk is None:
                recorder.fail(UNKNOWN_MODEL)
                chunk = 0
        index = call.count_forward(chunk, microbatch.of(args, kwargs))
        recorder.begin_forward(chunk, index)
        result = forward_step(*args, **kwargs)
        recorder.end_forward(chunk, index, None if call.forward_only else _output(result))
        return result

    replace(schedules, forward_step=forward)


def _output(result: Any) -> Any:
    """The output tensor in what forward_step returns: (output, token count)."""
    return first_tensor(result[0] if isinstance(result, tuple) else result)


def first_tensor(output: Any) -> Any:
    """The tensor by which an output is recognised: schedules pass a tensor or a list of one."""
    while isinstance(output, list) and output:
        output = output[0]
    return output


def _wrap_backward(schedules: Any, recorder: Recorder, tracker: Tracker) -> None:
    backward_step = schedules.backward_step
    output_tensor = Argument(backward_step, "output_tensor")

    @functools.wraps(backward_step)
    def backward(*args: Any, **kwargs: Any) -> Any:
        call = tracker.recorded
        if call is None:
            return backward_step(*args, **kwargs)
        recorder.begin_backward(first_tensor(output_tensor.of(args, kwargs)))
        result = backward_step(*args, **kwargs)
        end_backward(call, recorder)
        return result

    replace(schedules, backward_step=backward)


def end_backward(call: ScheduleCall, recorder: Recorder) -> tuple[int, int]:
    """The running backward has ended, and a reduction may have started in it: its chunk and microbatch, as of the recorder."""
    chunk, microbatch = recorder.end_backward()
    if call.reduces_in_backward and microbatch == call.microbatches - 1:
        recorder.start_grad_sync(chunk)
    return chunk, microbatch
