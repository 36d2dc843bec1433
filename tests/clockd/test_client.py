import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatron_energy.clockd.client import ClockdClient, Lease
from megatron_energy.clockd.errors import ClockdError, ConnectionLost, Denied, Failed, Unavailable
from megatron_energy.clockd.messages import encode
from megatron_energy.clockd.paths import SOCKET, socket_path
from megatron_energy.gpus.actuators import Actuator
from megatron_energy.gpus.errors import GpuError
from tests.clockd.host import Host
from tests.emulated_gpus import FakeClock

HELLO = {"id": 1, "ok": True, "protocol": 1}


@pytest.fixture
def script(tmp_path: Path) -> Iterator["Script"]:
    found = Script(tmp_path / "socket")
    yield found
    found.close()


class Script:
    """A false clockd that answers what it is told to; None: it closes, "": it says nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.replies: list[bytes | None] = [encode(HELLO)]
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        try:
            link, _ = self._listener.accept()
        except OSError:
            return
        with link:
            for reply in self.replies:
                if not link.recv(65536) or reply is None:
                    return
                link.send(reply)
            link.recv(65536)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


def test_a_clockd_that_accepts_nobody_is_not_taken_for_none(tmp_path: Path) -> None:
    """Its queue is full (it hangs, or many ranks start at once). Who believed that there is none would set clocks beside it."""
    path = tmp_path / "socket"
    waiting: list[socket.socket] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        with contextlib.suppress(BlockingIOError):
            while True:
                waiting.append(socket.socket(socket.AF_UNIX))
                waiting[-1].setblocking(False)
                waiting[-1].connect(str(path))
        with pytest.raises(ClockdError, match="accepts no connections") as refused:
            ClockdClient.connect(path, timeout_s=0.05)
        assert not isinstance(refused.value, Unavailable)
    for link in waiting:
        link.close()


def test_where_clockd_is() -> None:
    assert socket_path({}) == SOCKET
    assert socket_path({"MEGATRON_ENERGY_CLOCKD": "/somewhere"}) == Path("/somewhere")


def test_another_protocol(script: Script) -> None:
    script.replies = [encode({**HELLO, "protocol": 2})]
    with pytest.raises(Unavailable, match="speaks protocol 2, not 1: install the same version"):
        ClockdClient.connect(script.path)


def test_a_refusal_is_an_exception_of_its_kind(script: Script) -> None:
    script.replies.append(encode({"id": 2, "ok": False, "error": "failed", "message": "the driver says no"}))
    with ClockdClient.connect(script.path) as client, pytest.raises(Failed, match="the driver says no") as error:
        client.request("status")
    assert isinstance(error.value, ClockdError) and isinstance(error.value, GpuError)  # a controller knows GpuErrors


@pytest.mark.parametrize(
    ("reply", "complaint"),
    [
        (None, "clockd closed the connection"),
        (b"", "clockd does not answer"),
        (b"nonsense\n", "something that is no reply"),
        (b"[]\n", "something that is no reply"),
        (encode({"id": 7, "ok": True}), "answered another request"),
    ],
)
def test_a_connection_that_goes_wrong_is_lost_for_good(script: Script, reply: bytes | None, complaint: str) -> None:
    script.replies.append(reply)
    client = ClockdClient.connect(script.path, timeout_s=0.2)
    with pytest.raises(ConnectionLost, match=complaint):
        client.request("status")
    assert client.closed
    with pytest.raises(ConnectionLost, match="connect anew"):
        client.request("status")


def test_renewing_when_it_is_due(host: Host) -> None:
    host.start()
    clock = FakeClock()
    with host.client() as client:
        lease = Lease(client, client.request("lease", gpus=host.uuids[:1], ttl_s=60), clock)
        assert not lease.renew_if_due()
        clock.now_s += 20.0
        assert lease.renew_if_due()
        assert not lease.renew_if_due()
        client.close()
        assert not lease.renew_if_due()  # not due: nothing is asked
        clock.now_s += 20.0
        with pytest.raises(ConnectionLost):
            lease.renew_if_due()


def test_what_a_clock_controller_drives(host: Host) -> None:
    host.start()
    with host.client() as client:
        actuator: Actuator = client.lease(host.uuids[:1]).gpu(host.uuids[0])
        actuator.set_max_clock(1200)
        assert host.locked() == (210, 1200)
        actuator.release()
        assert host.locked() == (0, 0)
        with pytest.raises(Denied, match="no SM clock of 1201 MHz; the nearest is 1200 MHz"):
            actuator.set_max_clock(1201)


def test_a_forked_child_cannot_use_it(host: Host) -> None:
    host.start()
    with host.client() as client:
        lease = client.lease(host.uuids[:1])
        pid = os.fork()
        if pid == 0:
            try:
                lease.set_max_clock(host.uuids[0], 900)
            except ConnectionLost:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        lease.renew()


def test_threads_take_turns(host: Host) -> None:
    host.start()
    with host.client() as client:
        lease = client.lease(host.uuids)
        failures: list[ClockdError] = []

        def drive(uuid: str) -> None:
            try:
                for max_mhz in (900, 1200, 600, 1410):
                    lease.set_max_clock(uuid, max_mhz)
            except ClockdError as error:
                failures.append(error)

        threads = [threading.Thread(target=drive, args=(uuid,)) for uuid in host.uuids]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert [host.locked(index) for index in range(4)] == [(210, 1410)] * 4
