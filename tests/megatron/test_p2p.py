"""Wrapping P2PCommunicator._communicate: posts, waits, handles."""

from types import SimpleNamespace
from typing import Any

import pytest

from megatron_energy.megatron import p2p
from megatron_energy.megatron.recorder import Recorder
from megatron_energy.megatron.schedule_call import ScheduleCall, Tracker
from megatron_energy.records.steps import Post, Wait

SENT = {"tensor_send_next": "x", "tensor_send_prev": "y", "recv_prev": True, "recv_next": True, "tensor_shape": ()}


class Request:
    def __init__(self) -> None:
        self.waited: list[Any] = []
        self.group = "pipeline"

    def wait(self, timeout: Any = None) -> str:
        self.waited.append(timeout)
        return "done"


class Communication:
    """Stands in for the module; answers with prepared requests."""

    def __init__(self, requests: Any) -> None:
        answer = requests

        class P2PCommunicator:
            def _communicate(self, *, tensor_send_next: Any, tensor_send_prev: Any, recv_prev: bool, recv_next: bool, tensor_shape: Any,
                             wait_on_reqs: bool = True) -> Any:  # fmt: skip
                return "from prev", "from next", answer

        self.P2PCommunicator = P2PCommunicator
        self.recorder, self.tracker = Recorder(), Tracker()
        self.tracker.recorded = ScheduleCall([object()], {"num_microbatches": 1})
        p2p.wrap(self, self.recorder, self.tracker)

    def communicate(self, **changes: Any) -> Any:
        return self.P2PCommunicator()._communicate(**{**SENT, **changes})


def test_a_blocking_call_posts_and_then_waits_in_the_canonical_order() -> None:
    communication = Communication(None)
    assert communication.communicate() == ("from prev", "from next", None)
    names = ["recv_prev", "send_next", "recv_next", "send_prev"]
    assert communication.recorder.take() == [*(Post(n, 0) for n in names), *(Wait(n, 0) for n in names)]  # type: ignore[arg-type]


def test_only_what_is_asked_for_is_posted() -> None:
    communication = Communication(None)
    communication.communicate(tensor_send_next=None, recv_prev=False, recv_next=False)
    assert communication.recorder.take() == [Post("send_prev", 0), Wait("send_prev", 0)]
    communication.communicate(tensor_send_next=None, tensor_send_prev=None, recv_prev=False, recv_next=False)
    assert communication.recorder.take() == []


def test_a_request_records_its_first_wait_and_passes_everything_through() -> None:
    request = Request()
    communication = Communication({"send_next": request})
    changes = {"tensor_send_prev": None, "recv_prev": False, "recv_next": False, "wait_on_reqs": False}
    handle = communication.communicate(**changes)[2]["send_next"]
    assert communication.recorder.program == [Post("send_next", 0)]
    assert handle.group == "pipeline"
    assert handle.wait(5) == "done" and handle.wait() == "done"
    assert request.waited == [5, None]
    assert communication.recorder.program == [Post("send_next", 0), Wait("send_next", 0)]
    with pytest.raises(AttributeError):
        _ = handle.no_such_attribute


def test_requests_that_are_popped_are_waited_for_one_by_one() -> None:
    communication = Communication({"recv_prev": Request(), "send_next": Request()})
    requests = communication.communicate(tensor_send_prev=None, recv_next=False, wait_on_reqs=False)[2]
    requests.pop("send_next").wait()
    requests.pop("recv_prev").wait()
    assert communication.recorder.take()[2:] == [Wait("send_next", 0), Wait("recv_prev", 0)]


def test_one_request_of_a_batch_stands_for_all() -> None:
    first, second = Request(), Request()
    communication = Communication([first, second])
    requests = communication.communicate(tensor_send_prev=None, recv_next=False, wait_on_reqs=False)[2]
    for request in requests:
        request.wait()
    assert communication.recorder.take()[2:] == [Wait("recv_prev", 0), Wait("send_next", 0)]
    assert first.waited == second.waited == [None]


def test_outside_of_a_schedule_call_nothing_changes() -> None:
    request = Request()
    communication = Communication({"send_next": request})
    communication.tracker.recorded = None
    assert communication.communicate(wait_on_reqs=False)[2]["send_next"] is request
    assert communication.recorder.take() == []


def test_the_class_is_wrapped_in_place() -> None:
    """Megatron's schedules hold the class, not the module."""
    module = SimpleNamespace(P2PCommunicator=type("P2PCommunicator", (), {"_communicate": lambda self: None}))
    held = module.P2PCommunicator
    before = held._communicate
    p2p.wrap(module, Recorder(), Tracker())
    assert module.P2PCommunicator is held and held._communicate is not before


def test_waits_are_timed_where_the_stream_waits() -> None:
    """In the call itself if it waits, else at each request."""
    communication = Communication(None)
    marked: list[str] = []
    communication.recorder.mark = lambda point: marked.append(f"{point[0]} {point[3]}")
    communication.communicate()
    assert marked == ["wait begin", "wait end"]
    communication = Communication({"send_next": Request()})
    communication.recorder.mark = lambda point: marked.append(f"{point[0]} {point[3]}")
    handle = communication.communicate(tensor_send_prev=None, recv_prev=False, recv_next=False, wait_on_reqs=False)[2]["send_next"]
    assert marked == ["wait begin", "wait end"]
    handle.wait()
    assert marked == ["wait begin", "wait end"] * 2
