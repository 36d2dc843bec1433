"""Wrapping forward_step and backward_step of different versions, by the names of their arguments."""

from types import SimpleNamespace
from typing import Any

from megatron_energy.megatron import operations
from megatron_energy.megatron.recorder import UNKNOWN_OUTPUT, Recorder
from megatron_energy.megatron.schedule_call import ScheduleCall, Tracker
from megatron_energy.records.steps import Compute, GradSyncStart

MODELS = [object(), object()]


def new_forward(forward_step_func: Any, model: Any, output: Any, current_microbatch: Any = None, vp_stage: Any = None) -> Any:
    return [output], 7


def old_forward(forward_step_func: Any, model: Any, output: Any) -> Any:
    return output


def new_backward(input_tensor: Any, output_tensor: Any, output_tensor_grad: Any, config: Any) -> str:
    return "gradient"


def old_backward(input_tensor: Any, output_tensor: Any, output_tensor_grad: Any, model_type: Any, config: Any) -> str:
    return "gradient"


def wrapped(forward: Any = new_forward, backward: Any = new_backward, **call: Any) -> tuple[Any, Recorder, Tracker]:
    schedules, recorder, tracker = SimpleNamespace(forward_step=forward, backward_step=backward), Recorder(), Tracker()
    operations.wrap(schedules, recorder, tracker)
    in_backward = bool(call.pop("reduces_in_backward", False))
    tracker.recorded = ScheduleCall(MODELS, {"num_microbatches": 2, **call}, in_backward)
    return schedules, recorder, tracker


def test_results_pass_through_and_chunks_are_named() -> None:
    schedules, recorder, _ = wrapped()
    output = object()
    assert schedules.forward_step(None, MODELS[1], output, current_microbatch=4, vp_stage=1) == ([output], 7)
    assert schedules.backward_step(None, [output], None, config=None) == "gradient"
    assert recorder.take() == [Compute("forward", 1, 4), Compute("backward", 1, 4)]


def test_versions_without_stage_and_microbatch() -> None:
    schedules, recorder, _ = wrapped(old_forward, old_backward)
    outputs = [object() for _ in range(3)]
    for model, output in zip((MODELS[1], MODELS[0], MODELS[1]), outputs, strict=True):
        assert schedules.forward_step(None, model, output) is output
    schedules.backward_step(None, outputs[2], None, None, None)
    assert recorder.take() == [
        Compute("forward", 1, 0),
        Compute("forward", 0, 0),
        Compute("forward", 1, 1),
        Compute("backward", 1, 1),
    ]  # fmt: skip


def test_an_unknown_model_breaks_the_recording() -> None:
    schedules, recorder, _ = wrapped()
    schedules.forward_step(None, object(), object())
    assert recorder.broken == operations.UNKNOWN_MODEL


def test_nothing_is_recorded_outside_of_a_schedule_call() -> None:
    schedules, recorder, tracker = wrapped()
    tracker.recorded = None
    output = object()
    assert schedules.forward_step(None, object(), output)[0] == [output]
    assert schedules.backward_step(None, output, None, None) == "gradient"
    assert recorder.take() == [] and recorder.broken is None


def test_an_evaluation_keeps_no_outputs() -> None:
    schedules, recorder, _ = wrapped(forward_only=True)
    output = object()
    schedules.forward_step(None, MODELS[0], output, current_microbatch=0)
    recorder.begin_backward(output)
    assert recorder.broken == UNKNOWN_OUTPUT


def test_reductions_that_start_in_the_last_backward() -> None:
    schedules, recorder, _ = wrapped(reduces_in_backward=True)
    for microbatch in range(2):
        output = object()
        schedules.forward_step(None, MODELS[0], output, current_microbatch=microbatch)
        schedules.backward_step(None, output, None, None)
    assert recorder.take()[-2:] == [Compute("backward", 0, 1), GradSyncStart(0)]
    assert recorder.take().count(GradSyncStart(0)) == 0
