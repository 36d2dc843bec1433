"""Who is at the other end of a connection, as the kernel says it.

The kernel notes process, user and groups when a process connects (unix(7), SO_PEERCRED), and the caller cannot forge
them. The process is held by a pidfd, not by its number: a number may be given to another process, and a socket may live
on in a forked child after the process that connected is dead.
"""

import array
import errno
import os
import select
import socket
import struct
from dataclasses import dataclass, field

from megatron_energy.clockd.pidfd import open_pidfd

# asm-generic/socket.h; Python's socket module has no names for them.
SO_PEERGROUPS = 59  # since Linux 4.13
SO_PEERPIDFD = 77  # since Linux 6.5

_LONGEST_OPTION_BYTES = 1024  # what Python's getsockopt can fetch: 256 groups
_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid


class NoPeer(Exception):
    """The process that connected cannot be identified, or is gone; one line with the reason."""


@dataclass(slots=True)
class Peer:
    """The process that connected. ``pidfd`` becomes readable when it ends."""

    pid: int
    uid: int
    gids: frozenset[int]
    pidfd: int = field(default=-1, compare=False)

    def close(self) -> None:
        """Let the pidfd go."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1

    @property
    def operator(self) -> bool:
        """Whether the caller may do what operators may: root, or the user that clockd runs as."""
        return self.uid in (0, os.geteuid())


def peer_of(connection: socket.socket) -> Peer:
    """The peer of a connected Unix socket. Raises NoPeer."""
    pid, uid, gid = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if pid <= 0:
        raise NoPeer("your process has no number where clockd runs: run clockd on the host, outside of containers")
    try:
        pidfd = _pidfd(connection, pid, uid)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM):
            raise NoPeer(f"clockd cannot hold process {pid}: its kernel has no pidfds, or they are filtered ({error.strerror})") from error
        raise NoPeer(f"process {pid} that connected is gone ({error.strerror or error})") from error
    peer = Peer(pid, uid, frozenset({gid, *_groups(connection)}), pidfd)
    if has_ended(pidfd):
        peer.close()
        raise NoPeer(f"process {pid} that connected is gone")
    return peer


def has_ended(pidfd: int) -> bool:
    """Whether the process of a pidfd has ended (it need not have been waited for)."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _pidfd(connection: socket.socket, pid: int, uid: int) -> int:
    try:
        return connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise
    # Before Linux 6.5 the number must be looked up, and may meanwhile be another process's: then at least it must be the same user's.
    pidfd = open_pidfd(pid)
    try:
        if os.stat(f"/proc/{pid}").st_uid != uid:
            raise ProcessLookupError(errno.ESRCH, "its number is another user's by now")
    except OSError:
        os.close(pidfd)
        raise
    return pidfd


def _groups(connection: socket.socket) -> list[int]:
    """Supplementary groups; none where there are more than can be read, so that such a caller is denied rather than trusted."""
    groups = array.array("I")
    try:
        groups.frombytes(connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, _LONGEST_OPTION_BYTES))
    except OSError as error:
        if error.errno not in (errno.ERANGE, errno.ENOPROTOOPT):
            raise
    return list(groups)
