"""clockd with many clients, silent ones, and operators."""

import os
import socket
import time

import pytest

from megatron_energy.clockd.errors import Busy, Denied, LeaseEnded, Unavailable
from tests.clockd.host import Host, wait_until


def test_a_client_that_does_not_read_blocks_nobody(host: Host) -> None:
    host.start()
    gpu = host.uuids[0]
    with host.client() as client, socket.socket(socket.AF_UNIX) as stalled:
        stalled.connect(str(host.socket))
        stalled.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:  # until its own socket is full
                stalled.send(b'{"op":"status"}\n' * 100)
        lease = client.lease([gpu])
        for max_mhz in (1200, 1410):
            lease.set_max_clock(gpu, max_mhz)
        assert host.locked() == (210, 1410)
        wait_until(lambda: _closed(stalled), "the stalled client is dropped")
        lease.renew()


def _closed(link: socket.socket) -> bool:
    try:
        link.send(b'{"op":"status"}\n')
    except BlockingIOError:
        return False
    except OSError:
        return True
    return False


def test_two_hundred_connections_at_once(host: Host) -> None:
    host.start()
    clients = [host.client() for _ in range(200)]
    try:
        assert {client.request("hello")["pid"] for client in clients} == {os.getpid()}
        clients[0].lease(host.uuids[:1])
        with pytest.raises(Busy, match=f"leased by process {os.getpid()}"):
            clients[199].lease(host.uuids[:1])
    finally:
        for client in clients:
            client.close()


def test_an_unreachable_socket(host: Host) -> None:
    with pytest.raises(Unavailable, match=r"no clockd at .*: start it"):
        host.client()
    daemon = host.start()
    daemon.kill()
    daemon.wait()
    with pytest.raises(Unavailable, match=r"no clockd at .*: start it"):
        host.client()


def test_a_split_gpu_is_not_lent(host: Host) -> None:
    host.start()
    with host.node.edit(0) as record:
        record.mig_instances = 2
    with host.client() as client, pytest.raises(Denied, match="split by MIG"):
        client.lease(host.uuids[:1])


def test_idle_clockd_waits(host: Host) -> None:
    """It must not spin: with a lease and a connection it takes (nearly) no processor time."""
    daemon = host.start()
    with host.client() as client:
        client.lease(host.uuids[:1])
        before = _ticks(daemon.pid)
        time.sleep(0.5)
        assert _ticks(daemon.pid) - before <= 2  # of 10 ms each


def _ticks(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_an_operator_restores_and_releases_from_outside(host: Host) -> None:
    host.start()
    with host.client() as client, host.client() as operator:
        lease = client.lease(host.uuids[:2])
        lease.set_max_clock(host.uuids[0], 900)
        assert operator.restore() == {"restored": [host.uuids[0]], "unrestored": {}}
        assert host.locked() == (0, 0)
        with pytest.raises(LeaseEnded, match="an operator restored the GPU"):
            lease.renew()
        # Named GPUs are reset whatever clockd knows of them: a lock that somebody else left.
        with host.node.edit(3) as record:
            record.locked_min_mhz, record.locked_max_mhz = 210, 600
        assert operator.restore(host.uuids[3:])["restored"] == host.uuids[3:]
        assert host.locked(3) == (0, 0)
        client.lease(host.uuids[:1]).set_max_clock(host.uuids[0], 900)
        assert operator.evict(host.uuids[:1])["released"] == host.uuids[:1]
        assert host.locked() == (0, 0)
