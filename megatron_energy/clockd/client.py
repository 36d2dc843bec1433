"""clockd's client, for training processes.

Threads are its caller's business: it starts none, so the caller renews leases (:meth:`Lease.renew_if_due`). Calls from
several threads take turns. A lost connection is not mended silently: the lease is gone by then, clocks have been
restored, and whoever planned with them must know. All errors are :class:`ClockdError`, one line each.

Example::

    with ClockdClient.connect() as clockd:
        lease = clockd.lease([gpu.uuid], ttl_s=60)
        lease.set_max_clock(gpu.uuid, 1200)
        ...
        lease.renew_if_due()          # now and then
        lease.release()
"""

import errno
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from megatron_energy.clockd.errors import REFUSALS, ClockdError, ConnectionLost, Refused, Unavailable
from megatron_energy.clockd.messages import PROTOCOL, encode
from megatron_energy.clockd.paths import socket_path

TIMEOUT_S = 10.0  # clockd answers in milliseconds; eight GPUs that are restored at once take 50 ms
RECONNECT_S = 0.02  # between two attempts where too many wait to be accepted
RENEW_AFTER = 1 / 3  # of a lease's time

_LONGEST_REPLY_BYTES = 1 << 20


class ClockdClient:
    """A connection to clockd. Leases end with it; a forked child cannot use it.

    Attributes:
        hello: what clockd says of itself and of the caller: ``clockd`` (version), ``protocol``, ``emulated``, ``pid``, ``uid``,
            ``operator``, ``rules`` (empty, or why everything is denied).
    """

    def __init__(self, link: socket.socket) -> None:
        """Use :meth:`connect`."""
        self._link: socket.socket | None = link
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._received = b""
        self._number = 0
        self.hello = self.request("hello")
        if self.hello.get("protocol") != PROTOCOL:
            raise Unavailable(
                f"clockd speaks protocol {self.hello.get('protocol')}, not {PROTOCOL}: install the same version of megatron-energy"
            )

    @classmethod
    def connect(cls, path: Path | None = None, timeout_s: float = TIMEOUT_S) -> "ClockdClient":
        """Connect to the clockd of this host.

        Args:
            path: its socket; default: ``MEGATRON_ENERGY_CLOCKD``, else the usual place.
            timeout_s: for every request.

        Raises Unavailable: no clockd, or it does not let this user connect. Another ClockdError: there is one, and it does not
        answer or does not serve this process.
        """
        link = _connected(path or socket_path(), timeout_s)
        try:
            return cls(link)
        except ClockdError:
            link.close()
            raise

    def lease(self, gpus: Sequence[str], ttl_s: float = 60.0) -> "Lease":
        """Borrow GPUs, all or none, for ``ttl_s`` seconds at a time. Raises Denied, Busy and other ClockdErrors."""
        reply = self.request("lease", gpus=list(gpus), ttl_s=ttl_s)
        return Lease(self, reply)

    def status(self) -> dict[str, Any]:
        """The GPUs that the caller may use (operators: all): ``{"emulated", "rules", "audit", "gpus": [...]}``."""
        return self.request("status")

    def evict(self, gpus: Sequence[str] | None = None) -> dict[str, Any]:
        """End leases of the caller's user, other processes' too; None: all of them. ``{"released", "unrestored"}``."""
        return self.request("evict", gpus=None if gpus is None else list(gpus))

    def restore(self, gpus: Sequence[str] | None = None) -> dict[str, Any]:
        """Operators: end leases and restore; None: every changed GPU. ``{"restored", "unrestored"}``."""
        return self.request("restore", gpus=None if gpus is None else list(gpus))

    def request(self, operation: str, **arguments: object) -> dict[str, Any]:
        """Send one request and wait for its reply. Raises Refused (its subclass says why), ConnectionLost."""
        if os.getpid() != self._pid:
            raise ConnectionLost("a forked process cannot use its parent's clockd connection: connect anew")
        with self._lock:
            self._number += 1
            self._send(encode({"id": self._number, "op": operation, **arguments}))
            reply = self._receive()
        if reply.get("ok") is not True:
            error = REFUSALS.get(str(reply.get("error")), Refused)
            raise error(str(reply.get("message", "clockd refused without a reason")))
        if reply.get("id") != self._number:
            self.close()
            raise ConnectionLost("clockd answered another request than the one that was sent")
        return {key: value for key, value in reply.items() if key not in ("id", "ok")}

    def close(self) -> None:
        """End the connection, and with it its leases."""
        link, self._link = self._link, None
        if link is not None:
            link.close()

    @property
    def closed(self) -> bool:
        """Whether the connection has ended, as far as is known here."""
        return self._link is None

    def __enter__(self) -> "ClockdClient":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _send(self, line: bytes) -> None:
        link = self._open_link()
        try:
            link.sendall(line)
        except BrokenPipeError:
            pass  # clockd has closed; it may have said why
        except OSError as error:
            self._lose(error)

    def _receive(self) -> dict[str, Any]:
        link = self._open_link()
        while b"\n" not in self._received:
            try:
                more = link.recv(65536)
            except OSError as error:
                self._lose(error)
            if not more or len(self._received) > _LONGEST_REPLY_BYTES:
                self._lose(None)
            self._received += more
        line, _, self._received = self._received.partition(b"\n")
        try:
            reply = json.loads(line)
        except (ValueError, RecursionError):
            reply = None
        if not isinstance(reply, dict):
            self.close()
            raise ConnectionLost("clockd sent something that is no reply")
        return reply

    def _open_link(self) -> socket.socket:
        if self._link is None:
            raise ConnectionLost("the connection to clockd has ended, and with it its leases: connect anew")
        return self._link

    def _lose(self, error: OSError | None) -> NoReturn:
        self.close()
        if isinstance(error, TimeoutError):
            raise ConnectionLost("clockd does not answer; its leases end with this connection") from error
        raise ConnectionLost("clockd closed the connection; its clocks have been restored, or will be when clockd is back") from error


class Lease:
    """Borrowed GPUs. Every call may raise LeaseEnded, with the reason.

    Attributes:
        gpus: UUID -> what the rules allow: ``clocks_mhz`` and ``power_w``, each ``[least, most]`` or None (not at all).
        ttl_s: how long it lasts without being renewed.
    """

    def __init__(self, client: ClockdClient, reply: dict[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        """Use :meth:`ClockdClient.lease`."""
        self._client = client
        self._name: str = reply["lease"]
        self._clock = clock
        self._renewed_s = clock()
        self.gpus: dict[str, dict[str, list[float] | None]] = reply["gpus"]
        self.ttl_s = float(reply["ttl_s"])

    def set_max_clock(self, gpu: str, max_mhz: int | None) -> None:
        """Let a GPU run at ``max_mhz`` at most and fall below when idle; None: as without a lease. Raises Denied, RateLimited, Failed."""
        self._client.request("clock", lease=self._name, gpu=gpu, max_mhz=max_mhz)

    def set_power_limit(self, gpu: str, limit_w: float | None) -> None:
        """Lower the power limit of a GPU; None: as before the lease. Raises Denied, RateLimited, Failed."""
        self._client.request("power", lease=self._name, gpu=gpu, limit_w=limit_w)

    def renew(self) -> None:
        """Let the lease last ``ttl_s`` from now."""
        self._client.request("renew", lease=self._name)
        self._renewed_s = self._clock()

    def renew_if_due(self) -> bool:
        """Renew when a third of the time has passed; cheap otherwise. Whether it was renewed."""
        if self._clock() - self._renewed_s < self.ttl_s * RENEW_AFTER:
            return False
        self.renew()
        return True

    def release(self) -> dict[str, str]:
        """Give the GPUs back; returned when they are restored. GPUs that could not be restored yet, with the reason."""
        unrestored: dict[str, str] = self._client.request("release", lease=self._name)["unrestored"]
        return unrestored

    def gpu(self, uuid: str) -> "LeasedGpu":
        """One GPU of the lease, as what a clock controller drives."""
        return LeasedGpu(self, uuid)


class LeasedGpu:
    """An actuator: sets the clock of one leased GPU."""

    def __init__(self, lease: Lease, uuid: str) -> None:
        self._lease = lease
        self.uuid = uuid

    def set_max_clock(self, clock_mhz: int) -> None:
        """Let the GPU run at ``clock_mhz`` at most. Raises ClockdError."""
        self._lease.set_max_clock(self.uuid, clock_mhz)

    def release(self) -> None:
        """Give the choice of the clock back; the lease stays. Raises ClockdError."""
        self._lease.set_max_clock(self.uuid, None)


def _connected(path: Path, timeout_s: float) -> socket.socket:
    """A socket connected to clockd. Raises Unavailable; ClockdError where it does not accept connections in time."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.settimeout(timeout_s)
    end_s = time.monotonic() + timeout_s
    while True:
        try:
            link.connect(str(path))
            return link
        except BlockingIOError as error:  # so many wait already that the kernel takes no more; with a timeout it does not wait for room
            if time.monotonic() >= end_s:
                link.close()
                raise ClockdError(f"clockd at {path} accepts no connections: see whether it hangs (systemctl status)") from error
            time.sleep(RECONNECT_S)
        except OSError as error:
            link.close()
            raise Unavailable(_why_unreachable(path, error)) from error


def _why_unreachable(path: Path, error: OSError) -> str:
    if error.errno in (errno.ENOENT, errno.ECONNREFUSED):
        return f"no clockd at {path}: start it (docs/clockd.md), or mount its socket into the container"
    if error.errno == errno.EACCES:
        return f"clockd's socket {path} is closed to your user: its socket_group rule names who may connect"
    return f"clockd cannot be reached at {path}: {error.strerror or error}"


__all__ = ["ClockdClient", "ClockdError", "Lease", "LeasedGpu"]
