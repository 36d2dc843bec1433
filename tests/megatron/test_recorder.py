"""The recorder by itself: order, indices, requests, and what cannot be trusted."""

from megatron_energy.megatron.recorder import UNKNOWN_OUTPUT, Recorder
from megatron_energy.records.steps import ClockRequest, Compute, GradSync, Optimizer, Post, Wait

LOW, HIGH = ClockRequest(1005), ClockRequest(1410, 0.25)


def test_steps_are_in_program_order_and_indices_count_per_transfer() -> None:
    recorder = Recorder()
    recorder.begin_iteration({})
    recorder.wait(recorder.post(["recv_prev"]))
    recorder.begin_forward(1, 3)
    recorder.end_forward(1, 3, "output")
    later = recorder.post(["recv_prev", "send_next"])
    recorder.begin_optimizer()
    recorder.wait(later[1:])
    assert recorder.take() == [
        Post("recv_prev", 0),
        Wait("recv_prev", 0),
        Compute("forward", 1, 3),
        Post("recv_prev", 1),
        Post("send_next", 0),
        Optimizer(),
        Wait("send_next", 0),
    ]
    assert recorder.post(["recv_prev"]) == [Wait("recv_prev", 0)], "a new iteration counts anew"


def test_a_backward_is_known_by_its_output() -> None:
    recorder = Recorder()
    first, second = [1], [2]
    for microbatch, output in enumerate((first, second)):
        recorder.begin_forward(0, microbatch)
        recorder.end_forward(0, microbatch, output)
    recorder.begin_backward(second)
    assert recorder.end_backward() == (0, 1)
    recorder.begin_backward(first)
    assert recorder.end_backward() == (0, 0)
    assert recorder.program[2:] == [Compute("backward", 0, 1), Compute("backward", 0, 0)]
    assert recorder.broken is None


def test_an_unknown_output_breaks_the_iteration_once_and_training_goes_on() -> None:
    reasons: list[str] = []
    recorder = Recorder(on_broken=reasons.append)
    recorder.begin_backward(object())
    assert recorder.end_backward() == (-1, -1)
    recorder.begin_backward(object())
    assert reasons == [UNKNOWN_OUTPUT] and recorder.broken == UNKNOWN_OUTPUT
    assert recorder.take() == []
    assert recorder.broken is None, "the next iteration may be fine"


def test_an_output_is_held_until_its_backward_and_no_longer() -> None:
    class Output:
        alive = 0

        def __init__(self) -> None:
            Output.alive += 1

        def __del__(self) -> None:
            Output.alive -= 1

    recorder = Recorder()
    recorder.end_forward(0, 0, Output())
    assert Output.alive == 1
    kept = next(iter(recorder._outputs.values()))[0]
    recorder.begin_backward(kept)
    del kept
    assert Output.alive == 0


def test_requests_stand_at_their_points() -> None:
    recorder = Recorder()
    recorder.begin_iteration(
        {
            ("iteration", -1, -1, "begin"): [HIGH],
            ("forward", 0, 0, "begin"): [LOW],
            ("forward", 0, 0, "end"): [HIGH, LOW],
            ("backward", 0, 0, "begin"): [LOW],
            ("backward", 0, 0, "end"): [HIGH],
            ("grad-sync", -1, -1, "begin"): [LOW],
            ("grad-sync", -1, -1, "end"): [HIGH],
            ("optimizer", -1, -1, "begin"): [LOW],
            ("optimizer", -1, -1, "end"): [HIGH],
            ("iteration", -1, -1, "end"): [LOW],
            ("forward", 0, 1, "begin"): [LOW],  # is never reached
        }
    )
    output = object()
    recorder.begin_forward(0, 0)
    recorder.end_forward(0, 0, output)
    recorder.begin_backward(output)
    recorder.end_backward()
    recorder.begin_grad_sync()
    recorder.end_grad_sync()
    recorder.begin_optimizer()
    recorder.end_optimizer()
    forward, backward = Compute("forward", 0, 0), Compute("backward", 0, 0)
    assert recorder.take() == [
        HIGH, LOW, forward, HIGH, LOW, LOW, backward, HIGH, LOW, GradSync(), HIGH, LOW, Optimizer(), HIGH, LOW,
    ]  # fmt: skip


def test_requests_go_to_a_controller_where_there_is_one() -> None:
    sent: list[ClockRequest] = []
    recorder = Recorder()
    recorder.request = sent.append
    recorder.begin_iteration({("optimizer", -1, -1, "begin"): [LOW, HIGH]})
    recorder.begin_optimizer()
    assert sent == [LOW, HIGH]
    assert recorder.take() == [Optimizer()]


def test_every_point_can_be_timed_with_or_without_requests() -> None:
    recorder = Recorder()
    points: list[object] = []
    recorder.mark = points.append
    recorder.begin_iteration({})
    recorder.begin_forward(0, 1)
    recorder.end_forward(0, 1, None)
    recorder.begin_wait()
    recorder.end_wait()
    recorder.begin_optimizer()
    recorder.end_optimizer()
    assert points == [
        ("iteration", -1, -1, "begin"),
        ("forward", 0, 1, "begin"),
        ("forward", 0, 1, "end"),
        ("wait", -1, -1, "begin"),
        ("wait", -1, -1, "end"),
        ("optimizer", -1, -1, "begin"),
        ("optimizer", -1, -1, "end"),
        ("iteration", -1, -1, "end"),
    ]
    assert recorder.program == [Compute("forward", 0, 1), Optimizer()], "marks are not part of the program"
