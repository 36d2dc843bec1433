"""One client's connection: lines in, replies out, both bounded."""

import socket

from megatron_energy.clockd.leases import Caller
from megatron_energy.clockd.messages import LONGEST_LINE_BYTES
from megatron_energy.clockd.rates import Allowance

LONGEST_OUTPUT_BYTES = 64 * 1024  # a client that does not read its replies is dropped beyond this
MALFORMED_PER_S = 10
MALFORMED_BURST = 100
_READ_BYTES = 16 * 1024


class Connection:
    """A non-blocking socket with its buffers. ``dropped``: why it is to be closed; empty while it is in order."""

    def __init__(self, link: socket.socket, caller: Caller) -> None:
        link.setblocking(False)
        self.link = link
        self.caller = caller
        self.dropped = ""
        self.wants_to_write = False  # whether the loop waits for room to send
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self._malformed = Allowance(MALFORMED_PER_S, MALFORMED_BURST)

    @property
    def has_line(self) -> bool:
        """Whether a whole line waits."""
        return b"\n" in self._incoming

    @property
    def has_output(self) -> bool:
        """Whether replies wait to be sent."""
        return bool(self._outgoing)

    def read(self) -> None:
        """Take what has come, unless a line waits already: who sends faster than he is served fills his own socket."""
        if self.has_line:
            return
        try:
            received = self.link.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self.dropped = f"the connection broke ({error.strerror or error})"
            return
        if not received:
            self.dropped = "the connection was closed"
        self._incoming += received

    def next_line(self) -> bytes | None:
        """The next line without its end; None for one that is too long, after which the connection is dropped."""
        length = self._incoming.find(b"\n")
        if length > LONGEST_LINE_BYTES or (length < 0 and len(self._incoming) > LONGEST_LINE_BYTES):
            self.dropped = "it sent a line that is too long"
            return None
        line = bytes(self._incoming[:length])
        del self._incoming[: length + 1]
        return line

    @property
    def overlong(self) -> bool:
        """Whether what has come is too long for a line, and has no end yet."""
        return not self.has_line and len(self._incoming) > LONGEST_LINE_BYTES

    def malformed(self, now_s: float) -> None:
        """Count a malformed message; with too many the connection is dropped."""
        if not self._malformed.take(now_s):
            self.dropped = "it sent too many malformed messages"

    def send(self, line: bytes) -> None:
        """Queue a reply, and send what the client takes at once."""
        self._outgoing += line
        self.flush()
        if len(self._outgoing) > LONGEST_OUTPUT_BYTES:
            self.dropped = "it does not read its replies"

    def flush(self) -> None:
        """Send what can be sent without waiting."""
        try:
            while self._outgoing:
                del self._outgoing[: self.link.send(self._outgoing)]
        except BlockingIOError:
            pass
        except OSError as error:
            self.dropped = self.dropped or f"the connection broke ({error.strerror or error})"
