"""Killing the holder of a lease, clockd, or both, and how long it takes until the GPU is as it was found.

A supervisor in this process restarts a killed clockd at once, as systemd does.
"""

import os
import signal
import subprocess
import time

from tests.clockd.host import Host, wait_until

FOUND_MW = 300_000  # a site's own limit on the first GPU


def fork_holder(host: Host, keep_socket: bool) -> tuple[int, int]:
    """A process that changes the first GPU and sleeps; the second number is a child that keeps its socket open, or 0."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        client = host.client()
        lease = client.lease(host.uuids[:1])
        lease.set_max_clock(host.uuids[0], 1200)
        lease.set_power_limit(host.uuids[0], 250.0)
        child = os.fork() if keep_socket else 0
        if child or not keep_socket:
            os.write(write, f"{child}\n".encode())
        time.sleep(600)
        os._exit(0)
    os.close(write)
    with open(read) as pipe:
        return pid, int(pipe.readline())


def is_restored(host: Host) -> bool:
    """Whether the first GPU is as it was found."""
    return host.locked() == (0, 0) and host.limit_mw() == FOUND_MW


def kill(host: Host, daemon: "subprocess.Popen[str]", victims: str, keep_socket: bool = False) -> tuple[float, "subprocess.Popen[str]"]:
    """Kill the holder, clockd or both; seconds until restored, and the clockd that runs then."""
    pid, child = fork_holder(host, keep_socket)
    assert host.locked() == (210, 1200) and host.limit_mw() == 250_000
    start_s = time.monotonic()
    if victims in ("holder", "both"):
        os.kill(pid, signal.SIGKILL)
    if victims in ("clockd", "both"):
        daemon.kill()
        daemon.wait()
        daemon = host.start()
    wait_until(lambda: is_restored(host), f"restored after a kill of {victims}")
    took_s = time.monotonic() - start_s
    for number in filter(None, (pid, child)):
        os.kill(number, signal.SIGKILL)
    os.waitpid(pid, 0)
    return took_s, daemon
