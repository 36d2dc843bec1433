import errno
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatron_energy.clockd import peers
from megatron_energy.clockd.daemon import require_pidfds
from megatron_energy.clockd.peers import NoPeer, has_ended, peer_of
from megatron_energy.clockd.pidfd import open_pidfd
from megatron_energy.errors import UserError


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as link:
        link.bind(str(tmp_path / "socket"))
        link.listen()
        yield link


def connected_child(listener: socket.socket) -> tuple[int, socket.socket]:
    """A child that connects and waits to be killed."""
    pid = os.fork()
    if pid == 0:
        link = socket.socket(socket.AF_UNIX)
        link.connect(listener.getsockname())
        time.sleep(60)
        os._exit(0)
    return pid, listener.accept()[0]


def test_who_connected(listener: socket.socket) -> None:
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(listener.getsockname())
        peer = peer_of(listener.accept()[0])
    assert (peer.pid, peer.uid) == (os.getpid(), os.geteuid())
    assert peer.gids == {os.getegid(), *os.getgroups()}
    assert peer.operator  # the user that clockd runs as
    assert not has_ended(peer.pidfd)
    peer.close()
    peer.close()
    assert not peers.Peer(pid=1, uid=os.geteuid() + 1000, gids=frozenset()).operator


@pytest.mark.parametrize("option", [peers.SO_PEERPIDFD, 9999])
def test_the_end_of_the_process_is_seen_though_nobody_waited_for_it(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, option: int
) -> None:
    monkeypatch.setattr(peers, "SO_PEERPIDFD", option)  # 9999: a kernel that does not have it
    pid, link = connected_child(listener)
    peer = peer_of(link)
    assert peer.pid == pid and not has_ended(peer.pidfd)
    os.kill(pid, 9)
    while not has_ended(peer.pidfd):
        time.sleep(0.001)
    os.waitpid(pid, 0)
    peer.close()


@pytest.mark.parametrize("option", [peers.SO_PEERPIDFD, 9999])
def test_a_process_that_is_gone_by_then(listener: socket.socket, monkeypatch: pytest.MonkeyPatch, option: int) -> None:
    monkeypatch.setattr(peers, "SO_PEERPIDFD", option)
    pid, link = connected_child(listener)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    with pytest.raises(NoPeer, match=f"process {pid} that connected is gone"):
        peer_of(link)


def test_without_pidfds_it_says_so(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_pid: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(peers, "SO_PEERPIDFD", 9999)
    monkeypatch.setattr(os, "pidfd_open", refuse)
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(listener.getsockname())
        with pytest.raises(NoPeer, match="its kernel has no pidfds"):
            peer_of(listener.accept()[0])
    with pytest.raises(UserError, match=r"needs Linux 5\.3"):
        require_pidfds()


def test_a_python_that_does_not_know_pidfds(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those that were built on an older Linux."""
    monkeypatch.delattr(os, "pidfd_open")
    held = open_pidfd(os.getpid())
    assert not has_ended(held) and not os.get_inheritable(held)
    os.close(held)
    with pytest.raises(ProcessLookupError):
        open_pidfd(2**22 + 1)  # above the kernel's highest


def test_a_number_that_is_another_users_by_now(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "SO_PEERPIDFD", 9999)
    facts = os.stat_result((0,) * 4 + (os.geteuid() + 1,) + (0,) * 5)
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(listener.getsockname())
        accepted = listener.accept()[0]
        before = len(os.listdir("/proc/self/fd"))
        monkeypatch.setattr(os, "stat", lambda _path: facts)
        with pytest.raises(NoPeer, match="another user's by now"):
            peer_of(accepted)
        monkeypatch.undo()
        assert len(os.listdir("/proc/self/fd")) == before
