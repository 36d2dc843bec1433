import socket

from megatron_energy.clockd.connection import LONGEST_OUTPUT_BYTES, Connection
from megatron_energy.clockd.messages import LONGEST_LINE_BYTES
from tests.clockd.fake_devices import caller


def pair() -> tuple[Connection, socket.socket]:
    ours, theirs = socket.socketpair()
    return Connection(ours, caller()), theirs


def close(connection: Connection, theirs: socket.socket) -> None:
    connection.link.close()
    theirs.close()


def test_lines_arrive_in_pieces_and_in_heaps() -> None:
    connection, theirs = pair()
    theirs.send(b"on")
    connection.read()
    assert not connection.has_line
    theirs.send(b"e\ntwo\nth")
    connection.read()
    assert connection.next_line() == b"one"
    theirs.send(b"ree\n")
    connection.read()  # a line waits: nothing is taken
    assert connection.next_line() == b"two"
    assert not connection.has_line
    connection.read()
    assert connection.next_line() == b"three"
    close(connection, theirs)


def test_an_overlong_line() -> None:
    connection, theirs = pair()
    theirs.send(b"x" * (LONGEST_LINE_BYTES + 1))
    connection.read()
    assert connection.overlong and connection.next_line() is None
    assert connection.dropped == "it sent a line that is too long"
    close(connection, theirs)


def test_the_longest_line() -> None:
    connection, theirs = pair()
    theirs.send(b"x" * LONGEST_LINE_BYTES + b"\n")
    connection.read()
    assert connection.next_line() == b"x" * LONGEST_LINE_BYTES
    assert not connection.dropped
    close(connection, theirs)


def test_the_end_of_a_connection() -> None:
    connection, theirs = pair()
    theirs.close()
    connection.read()
    assert connection.dropped == "the connection was closed"
    close(connection, theirs)


def test_who_does_not_read_is_dropped_and_never_waited_for() -> None:
    connection, theirs = pair()
    sent = 0
    while not connection.dropped:
        connection.send(b"x" * 1023 + b"\n")
        sent += 1024
    assert connection.dropped == "it does not read its replies"
    assert len(connection._outgoing) <= LONGEST_OUTPUT_BYTES + 1024 < sent
    close(connection, theirs)


def test_replies_wait_for_a_slow_reader() -> None:
    connection, theirs = pair()
    while not connection.has_output:
        connection.send(b"x" * 1000 + b"\n")
    theirs.setblocking(False)
    received = 0
    while connection.has_output:
        received += len(theirs.recv(1 << 20))
        connection.flush()
    assert not connection.dropped and received > 0
    close(connection, theirs)


def test_a_hundred_malformed_messages_are_forgiven() -> None:
    connection, theirs = pair()
    for _ in range(100):
        connection.malformed(5.0)
    assert not connection.dropped
    connection.malformed(5.0)
    assert connection.dropped == "it sent too many malformed messages"
    close(connection, theirs)
