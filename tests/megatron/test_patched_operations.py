"""What a patched schedule tells, against what wrapped functions would record."""

from types import SimpleNamespace
from typing import Any

from megatron_energy.megatron import patched_operations
from megatron_energy.megatron.patched_operations import HOOK, OTHER_OUTPUT
from megatron_energy.megatron.recorder import UNKNOWN_OUTPUT, Recorder
from megatron_energy.megatron.schedule_call import ScheduleCall, Tracker
from megatron_energy.records.steps import ClockRequest, Compute, GradSyncStart


def listening(**call: Any) -> tuple[Any, Recorder, Tracker]:
    """The hook as a patched module holds it, within a schedule call of two chunks and two microbatches."""
    schedules, recorder, tracker = SimpleNamespace(**{HOOK: None}), Recorder(), Tracker()
    assert patched_operations.is_patched(schedules)
    patched_operations.listen(schedules, recorder, tracker)
    in_backward = bool(call.pop("reduces_in_backward", False))
    tracker.recorded = ScheduleCall([object(), object()], {"num_microbatches": 2, **call}, in_backward)
    return getattr(schedules, HOOK), recorder, tracker


def forward(hook: Any, chunk: int, microbatch: int) -> Any:
    output = object()
    hook("forward", "warm-up", chunk, microbatch, "begin", None)
    hook("forward", "warm-up", chunk, microbatch, "end", [output])
    return output


def backward(hook: Any, chunk: int, microbatch: int, output: Any) -> None:
    hook("backward", "cool-down", chunk, microbatch, "begin", output)
    hook("backward", "cool-down", chunk, microbatch, "end", None)


def test_a_stock_module_has_no_hook() -> None:
    assert not patched_operations.is_patched(SimpleNamespace(forward_step=None, backward_step=None))


def test_operations_and_their_requests_are_recorded() -> None:
    hook, recorder, _ = listening()
    sides = [(kind, 1, 0, side) for kind in ("forward", "backward") for side in ("begin", "end")]
    recorder.requests = {point: [ClockRequest(number)] for number, point in enumerate(sides)}
    backward(hook, 1, 0, [forward(hook, 1, 0)])
    assert recorder.broken is None
    assert recorder.take() == [
        ClockRequest(0), Compute("forward", 1, 0), ClockRequest(1), ClockRequest(2), Compute("backward", 1, 0), ClockRequest(3),
    ]  # fmt: skip


def test_a_backward_is_still_told_by_its_output() -> None:
    hook, recorder, _ = listening()
    forward(hook, 0, 0)
    backward(hook, 0, 0, forward(hook, 0, 1))
    assert recorder.broken == OTHER_OUTPUT
    assert recorder.take()[-1] == Compute("backward", 0, 1)
    backward(hook, 0, 0, object())
    assert recorder.broken == UNKNOWN_OUTPUT


def test_reductions_that_start_in_the_last_backward() -> None:
    hook, recorder, _ = listening(reduces_in_backward=True)
    for microbatch in range(2):
        backward(hook, 0, microbatch, forward(hook, 0, microbatch))
    assert [step for step in recorder.take() if isinstance(step, GradSyncStart)] == [GradSyncStart(0)]


def test_an_evaluation_keeps_no_outputs() -> None:
    hook, recorder, _ = listening(forward_only=True)
    recorder.begin_backward(forward(hook, 0, 0))
    assert recorder.broken == UNKNOWN_OUTPUT


def test_nothing_is_recorded_outside_of_a_schedule_call() -> None:
    hook, recorder, tracker = listening()
    tracker.recorded = None
    backward(hook, 0, 0, forward(hook, 0, 0))
    assert recorder.take() == [] and recorder.broken is None
