"""The socket loop. One thread, nothing in it waits for a client, and what gives GPUs back goes first.

A pass of the loop: ended processes (their GPUs are restored), what clients have sent, then one request of each client,
raises and releases of all clients before anything else.
"""

import resource
import selectors
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from megatron_energy.clockd.connection import Connection
from megatron_energy.clockd.leases import Caller
from megatron_energy.clockd.lending import Lending
from megatron_energy.clockd.messages import Refusal, Request, encode, parse
from megatron_energy.clockd.peers import NoPeer, peer_of
from megatron_energy.clockd.service import Service

MOST_DESCRIPTORS = 8192
SPARE_DESCRIPTORS = 64
SPARE_CONNECTIONS = 8  # for operators, when users have taken all others
LONGEST_PASS_S = 10.0
_ACCEPTS_PER_PASS = 64


class Server:
    """Serves the connections of a listening Unix socket.

    Args:
        listener: the socket.
        service: answers requests.
        lending: takes GPUs back.
        clock: monotonic seconds.
    """

    def __init__(self, listener: socket.socket, service: Service, lending: Lending, clock: Callable[[], float]) -> None:
        listener.setblocking(False)
        self._listener, self._service, self._lending, self._clock = listener, service, lending, clock
        self._selector = selectors.DefaultSelector()
        self._connections: set[Connection] = set()
        self._waiting: set[Connection] = set()  # have sent more than was answered in the last pass
        self._per_user: Counter[int] = Counter()
        self._most = connections_possible()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def watch(self, descriptor: socket.socket, action: Callable[[], None]) -> None:
        """Call ``action`` whenever ``descriptor`` has something to read (signals)."""
        self._selector.register(descriptor, selectors.EVENT_READ, action)

    def step(self, longest_s: float = LONGEST_PASS_S) -> None:
        """One pass; waits at most ``longest_s`` for something to do."""
        wait_s = 0.0 if self._waiting else max(0.0, min(longest_s, self._lending.next_due_s() - self._clock()))
        touched = self._waiting
        arrived: list[Connection] = []
        for key, _ in sorted(self._selector.select(wait_s), key=lambda event: isinstance(event[0].data, Connection)):
            if isinstance(key.data, Connection):
                arrived.append(key.data)
            else:
                key.data()  # ended processes, signals, new connections
        self._lending.tick()
        for connection in arrived:
            connection.read()
            connection.flush()
        touched = (touched | set(arrived)) & self._connections  # without those whose process has just ended
        self._serve(touched)
        for connection in touched:
            if connection.dropped:
                self._close(connection, connection.dropped)
            elif connection.has_output != connection.wants_to_write:
                connection.wants_to_write = connection.has_output
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.wants_to_write else 0)
                self._selector.modify(connection.link, events, connection)
        self._waiting = {connection for connection in touched if connection.has_line and not connection.dropped}

    def close(self) -> None:
        """Close all connections; their leases end."""
        for connection in list(self._connections):
            self._close(connection, "clockd stops")
        self._selector.unregister(self._listener)
        self._listener.close()
        self._selector.close()

    def _serve(self, connections: set[Connection]) -> None:
        """Answer one request of each of these clients, the urgent ones first."""
        asked: list[tuple[bool, Connection, Request]] = []
        for connection in connections:
            request = None if connection.dropped else self._next_request(connection)
            if request is not None:
                asked.append((not self._service.urgent(connection.caller, request), connection, request))
        asked.sort(key=lambda entry: entry[0])
        for _, connection, request in asked:
            self._reply(connection, request.number, self._service.answer(connection.caller, request))

    def _next_request(self, connection: Connection) -> Request | None:
        if not connection.has_line and not connection.overlong:
            return None
        line = connection.next_line()
        try:
            if line is None:
                raise Refusal("malformed", "the line is too long")
            return parse(line)
        except Refusal as refusal:
            peer = connection.caller.peer
            self._lending.log.refused(pid=peer.pid, uid=peer.uid, error=refusal.kind, message=str(refusal))
            self._reply(connection, None, {"ok": False, "error": refusal.kind, "message": str(refusal)})
            connection.malformed(self._clock())
            return None

    def _reply(self, connection: Connection, number: int | None, reply: dict[str, Any]) -> None:
        connection.send(encode(reply if number is None else {"id": number, **reply}))

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_PASS):
            try:
                link, _ = self._listener.accept()
            except OSError:  # none is waiting; or it went away again
                return
            self._greet(link)

    def _greet(self, link: socket.socket) -> None:
        try:
            peer = peer_of(link)
        except NoPeer as error:
            _turn_away(link, str(error))
            return
        reserved = 0 if peer.operator else SPARE_CONNECTIONS
        mine = self._per_user[peer.uid]
        too_many = mine >= self._lending.rules.connections_per_user and not peer.operator
        if too_many or len(self._connections) + reserved >= self._most:
            peer.close()
            _turn_away(link, f"too many connections (your user has {mine}): close some")
            return
        connection = Connection(link, Caller(peer))
        self._connections.add(connection)
        self._per_user[peer.uid] += 1
        self._selector.register(link, selectors.EVENT_READ, connection)
        self._selector.register(peer.pidfd, selectors.EVENT_READ, lambda: self._close(connection, "its process has ended"))

    def _close(self, connection: Connection, why: str) -> None:
        self._connections.discard(connection)
        peer = connection.caller.peer
        self._per_user[peer.uid] -= 1
        self._per_user += Counter()  # without the zeros
        self._selector.unregister(connection.link)
        self._selector.unregister(peer.pidfd)
        peer.close()
        connection.link.close()
        self._lending.end_of(connection.caller, why)


def connections_possible() -> int:
    """How many clients this process has file descriptors for (two each), after taking as many as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(MOST_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return (wanted - SPARE_DESCRIPTORS) // 2


def _turn_away(link: socket.socket, message: str) -> None:
    link.setblocking(False)
    with suppress(OSError):  # who does not listen need not know
        link.send(encode({"ok": False, "error": "denied", "message": message}))
    link.close()
