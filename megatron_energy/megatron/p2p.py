"""Point-to-point transfers: wraps ``_communicate``, through which every schedule sends and receives.

It is a method of P2PCommunicator, before megatron-core 0.14 a function of the module.
"""

import functools
from collections.abc import Sequence
from typing import Any

from megatron_energy.megatron.arguments import Argument
from megatron_energy.megatron.imports import replace
from megatron_energy.megatron.recorder import WAIT_BEGIN, WAIT_END, Recorder
from megatron_energy.megatron.schedule_call import Tracker
from megatron_energy.records.steps import TRANSFERS, Transfer, Wait

_FLAGS: dict[Transfer, str] = {
    "recv_prev": "recv_prev",
    "send_next": "tensor_send_next",
    "recv_next": "recv_next",
    "send_prev": "tensor_send_prev",
}
"""The argument that asks for each transfer: a tensor to send, or a bool to receive."""


class Handle:
    """A request of the communication library that records when it is first waited for. All else passes through."""

    __slots__ = ("_recorder", "_request", "_waits")

    def __init__(self, request: Any, waits: Sequence[Wait], recorder: Recorder) -> None:
        self._request = request
        self._waits = waits
        self._recorder = recorder

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        """Record the waits once, then wait."""
        if self._waits:
            self._recorder.wait(self._waits)
            self._waits = ()
        mark = self._recorder.mark
        if mark is None:
            return self._request.wait(*args, **kwargs)
        mark(WAIT_BEGIN)
        result = self._request.wait(*args, **kwargs)
        mark(WAIT_END)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)


def wrap(communication: Any, recorder: Recorder, tracker: Tracker) -> None:
    """Record the posts and waits of module ``communication``."""
    owner = getattr(communication, "P2PCommunicator", communication)
    communicate = owner._communicate
    asked = [(transfer, Argument(communicate, _FLAGS[transfer])) for transfer in TRANSFERS]
    wait_on_requests = Argument(communicate, "wait_on_reqs")

    @functools.wraps(communicate)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        if tracker.recorded is None:
            return communicate(*args, **kwargs)
        transfers = []
        for transfer, argument in asked:
            value = argument.of(args, kwargs)
            if value is not None and value is not False:
                transfers.append(transfer)
        waits = recorder.post(transfers)
        if wait_on_requests.of(args, kwargs) is False:
            received_prev, received_next, requests = communicate(*args, **kwargs)
            return received_prev, received_next, with_handles(requests, waits, recorder)
        recorder.begin_wait()
        received_prev, received_next, requests = communicate(*args, **kwargs)
        recorder.end_wait()
        recorder.wait(waits)
        return received_prev, received_next, requests

    replace(owner, _communicate=recorded)


def with_handles(requests: Any, waits: Sequence[Wait], recorder: Recorder) -> Any:
    """The requests of a call that did not wait, each as a :class:`Handle`.

    A dict names each request's transfer. A list comes from a batched call, which completes as a whole: its first request that is
    waited for stands for all transfers.
    """
    if isinstance(requests, dict):
        by_name: dict[str, Wait] = {wait.transfer: wait for wait in waits}
        return {name: Handle(request, (by_name[name],), recorder) if name in by_name else request for name, request in requests.items()}
    if isinstance(requests, list) and requests:
        return [Handle(requests[0], waits, recorder), *requests[1:]]
    return requests
