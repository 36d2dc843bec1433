"""Messages as they are, with odd values, damaged, and noise, sent by another user who has a lease on one GPU now and then."""

import json
import os
import random
import socket
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.clockd.host import Host

STRANGER = 65534  # "nobody", where this runs as root
ODD_VALUES: tuple[Any, ...] = (None, True, -1, 0, 1e308, 2**70, "", "GPU-", "\x00", [], {}, [[]], "a" * 5000, 1410, 600.5)
OWN = "own lease"  # stands for the name of the sender's last lease

RULES = """
[clockd]
lowers_per_s = 1000
connections_per_user = 1000
[rule holder]
users = {holder}
gpus = {held}
clocks_mhz = 210-1410
power_w = 100-400
[rule stranger]
users = *
gpus = {free}
clocks_mhz = 210-1410
power_w = 100-400
"""


def rules_for(host: Host) -> str:
    """This user may use all GPUs but the last, everybody the last."""
    return RULES.format(holder=os.geteuid(), held=", ".join(host.uuids[:-1]), free=host.uuids[-1])


def valid_messages(host: Host, leases: Sequence[str]) -> list[dict[str, Any]]:
    """Every operation for every GPU, with lease names that are foreign, expired or invented, and the sender's own."""
    messages: list[dict[str, Any]] = [{"op": "hello"}, {"op": "status"}]
    if os.geteuid() == 0:  # else the sender is the user that clockd runs as, and may do this
        messages += [{"op": "restore", "gpus": None}, {"op": "evict", "gpus": None}]
    for gpu in host.uuids:
        messages += [{"op": "lease", "gpus": [gpu], "ttl_s": 1}] * 3
        for lease in (*leases, OWN):
            messages += [
                {"op": "clock", "lease": lease, "gpu": gpu, "max_mhz": 600},
                {"op": "clock", "lease": lease, "gpu": gpu, "max_mhz": None},
                {"op": "power", "lease": lease, "gpu": gpu, "limit_w": 350},
                {"op": "renew", "lease": lease},
                {"op": "release", "lease": lease},
            ]
    return messages


def mutated(random_: random.Random, messages: Sequence[dict[str, Any]], own_lease: str) -> bytes:
    """One line without its end."""
    kind = random_.randrange(12)
    if kind == 0:
        return random_.randbytes(random_.randrange(1, 300)).replace(b"\n", b"")
    message: dict[str, Any] = dict(random_.choice(messages))
    if message.get("lease") == OWN:
        message["lease"] = own_lease
    if kind in (1, 2):
        message[random_.choice([*message, "id", "more"])] = random_.choice(ODD_VALUES)
    elif kind == 3:
        message.pop(random_.choice(list(message)))
    raw = bytearray(json.dumps(message).encode())
    if kind in (4, 5):
        for _ in range(random_.randrange(1, 5)):
            position = random_.randrange(len(raw))
            raw[position : position + random_.randrange(3)] = random_.randbytes(random_.randrange(3))
    elif kind == 6:
        raw = raw[: random_.randrange(len(raw))] * random_.randrange(1, 400)
    return bytes(raw).replace(b"\n", b"")


class Stranger:
    """Sends lines, and connects anew when it is dropped. ``outcomes`` counts what its messages ended in."""

    def __init__(self, host: Host) -> None:
        self.connections = 0
        self.own_lease = "0" * 16
        self.outcomes: Counter[str] = Counter()
        self._host = host
        self._link: socket.socket | None = None
        self._received = b""

    def send(self, line: bytes) -> dict[str, Any]:
        """The reply to a line; empty where the connection is dropped."""
        reply = self._exchange(line)
        answer: dict[str, Any] = json.loads(reply) if reply else {}
        self.outcomes["granted" if answer.get("ok") else str(answer.get("error", "dropped"))] += 1
        if "lease" in answer:
            self.own_lease = answer["lease"]
        return answer

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def _exchange(self, line: bytes) -> bytes:
        link = self._link or self._connect()
        try:
            link.sendall(line + b"\n")
            while b"\n" not in self._received:
                more = link.recv(65536)
                if not more:
                    self.close()
                    return b""
                self._received += more
        except (BrokenPipeError, ConnectionResetError):
            self.close()
            return b""
        reply, _, self._received = self._received.partition(b"\n")
        return reply

    def _connect(self) -> socket.socket:
        self._link, self._received = socket.socket(socket.AF_UNIX), b""
        self._link.settimeout(20)
        root = os.geteuid() == 0
        if root:
            os.seteuid(STRANGER)  # the kernel notes the effective user of who connects
        try:
            self._link.connect(str(self._host.socket))
        finally:
            if root:
                os.seteuid(0)
        self.connections += 1
        return self._link


def attack(host: Host, count: int, seed: int, every: int = 0, pause: Any = None) -> tuple[Stranger, list[str]]:
    """Send ``count`` lines to a running clockd while somebody else holds the first GPU.

    ``pause`` is called after each ``every`` lines. Returns the sender, and what went wrong.
    """
    random_, wrong = random.Random(seed), []
    with host.client() as client:
        lease = client.lease(host.uuids[:1], ttl_s=600)
        lease.set_max_clock(host.uuids[0], 1200)
        lease.set_power_limit(host.uuids[0], 300)
        stranger = Stranger(host)
        expired = stranger.send(json.dumps({"op": "lease", "gpus": host.uuids[-1:], "ttl_s": 60}).encode())["lease"]
        stranger.send(json.dumps({"op": "release", "lease": expired}).encode())
        messages = valid_messages(host, [lease._name, expired, "0123456789abcdef"])

        def facts() -> list[object]:
            others = [(host.gpu(index).locks_set, host.limit_mw(index)) for index in range(len(host.uuids) - 1)]
            return [*others, host.locked()]

        before = facts()
        for number in range(1, count + 1):
            stranger.send(mutated(random_, messages, stranger.own_lease))
            if every and number % every == 0:
                pause()
                lease.renew()
        if facts() != before:
            wrong.append(f"a GPU was changed by who has no lease on it: {before} became {facts()}")
        lease.set_max_clock(host.uuids[0], 1410)  # and the holder is still served
        stranger.close()
    return stranger, wrong
