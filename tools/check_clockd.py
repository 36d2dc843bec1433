"""Tries to break clockd: kills, mutated messages, many and silent clients. On emulated GPUs in wall time; prints Markdown tables.

    python tools/check_clockd.py [--messages 100000] [--kills 100] [--connections 200] [--requests 2000] [--seed 1]

A supervisor in this process restarts a killed clockd at once, as systemd does. Exit status 1 where anything was not restored, a
clock was changed without a valid lease, or clockd ended by itself.
"""

import argparse
import math
import os
import re
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from megatron_energy.clockd.client import ClockdClient
from megatron_energy.clockd.errors import RateLimited
from tests.clockd.host import Host
from tests.clockd.kills import FOUND_MW, kill
from tests.clockd.mutation import attack, rules_for

MEMORY_MAY_GROW_KIB = 1024  # after the first tenth of the messages


@dataclass
class Quantities:
    """Durations in s."""

    all_s: list[float] = field(default_factory=list)

    def row(self, name: str) -> str:
        """A row of a Markdown table: number, median, 99th percentile and worst in ms."""
        ordered = sorted(self.all_s)
        p99 = ordered[math.ceil(0.99 * len(ordered)) - 1]
        return f"| {name} | {len(ordered)} | {1000 * statistics.median(ordered):.2f} | {1000 * p99:.2f} | {1000 * ordered[-1]:.2f} |"


HEADER = "| what | times | median ms | p99 ms | worst ms |\n| --- | ---: | ---: | ---: | ---: |"


@contextmanager
def running_host() -> Iterator[tuple[Host, Any]]:
    """A host with four GPUs and a clockd; this user may use the first three, everybody the fourth."""
    with tempfile.TemporaryDirectory(prefix="check-clockd-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        host = Host(folder)
        host.write_rules(rules_for(host))
        host.set_limit_mw(0, FOUND_MW)
        try:
            yield host, host.start()
        finally:
            host.close()


def check_kills(kills: int) -> list[str]:
    """A table of the time until restored."""
    lines = ["## Kills: time until the clock and the power limit are as found", "", HEADER]
    with running_host() as (host, daemon):
        for name, victims, keep_socket in (
            ("holder of a lease", "holder", False),
            ("holder, a forked child keeps the socket", "holder", True),
            ("clockd (restarted by a supervisor)", "clockd", False),
            ("both (clockd restarted)", "both", True),
        ):
            times = Quantities()
            for _ in range(kills):
                took_s, daemon = kill(host, daemon, victims, keep_socket)
                times.all_s.append(took_s)
            lines.append(times.row(name))
    return lines


def memory_kib(pid: int) -> int:
    """Resident memory of a process."""
    match = re.search(r"VmRSS:\s*(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert match is not None
    return int(match[1])


def check_messages(count: int, seed: int) -> tuple[list[str], list[str]]:
    """Lines of the report, and what went wrong."""
    with running_host() as (host, daemon):
        sizes_kib: list[int] = []
        start_s = time.monotonic()
        stranger, wrong = attack(host, count, seed, max(1, count // 10), lambda: sizes_kib.append(memory_kib(daemon.pid)))
        took_s = time.monotonic() - start_s
        if daemon.poll() is not None:
            wrong.append(f"clockd ended with status {daemon.poll()}")
        if sizes_kib[-1] - sizes_kib[0] > MEMORY_MAY_GROW_KIB:
            wrong.append(f"clockd's memory grew: {sizes_kib} KiB")
        descriptors = len(os.listdir(f"/proc/{daemon.pid}/fd"))
    outcomes = ", ".join(f"{name} {times}" for name, times in sorted(stranger.outcomes.items()))
    return [
        "## Random and mutated messages of another user",
        "",
        f"- {count} messages in {took_s:.0f} s over {stranger.connections} connections: {outcomes}",
        f"- what went wrong: {'; '.join(wrong) or 'nothing; no GPU was changed without a valid lease'}",
        f"- clockd's memory after each tenth, MiB: {' '.join(f'{size / 1024:.2f}' for size in sizes_kib)}",
        f"- clockd's open files at the end: {descriptors}",
    ], wrong


def round_trips(requests: int, action: Callable[[int], object]) -> Quantities:
    """Time of each request, paced below the limit of messages per second."""
    times = Quantities()
    for number in range(requests):
        start_s = time.perf_counter()
        action(number)
        times.all_s.append(time.perf_counter() - start_s)
        time.sleep(0.006)
    return times


def check_clients(connections: int, requests: int) -> list[str]:
    """A table of round trips: alone, with many connections, with a client that does not read."""
    lines = ["## Round trips", "", HEADER]
    with running_host() as (host, _), host.client() as client:
        gpu = host.uuids[0]
        lease = client.lease([gpu], ttl_s=600)

        def change(number: int) -> None:
            lease.set_max_clock(gpu, (1200, 1410)[number % 2])

        lines.append(round_trips(requests, lambda _: lease.renew()).row("renew"))
        lines.append(round_trips(requests // 4, change).row("clock (5.75 ms of it the emulated driver)"))
        others = [host.client() for _ in range(connections)]
        lines.append(round_trips(requests, lambda _: lease.renew()).row(f"renew, {connections} other connections"))
        lines.append(round_trips(connections, lambda number: others[number].request("hello")).row("hello of each of them"))
        for other in others:
            other.close()
        with stalled(host), stalled(host):
            lines.append(round_trips(requests // 4, change).row("clock, two clients that do not read"))
        flood = os.fork()
        if flood == 0:
            _flood(host.client())
        lines.append(round_trips(requests // 4, change).row("clock, a client that floods"))
        os.kill(flood, signal.SIGKILL)
        os.waitpid(flood, 0)
    return lines


@contextmanager
def stalled(host: Host) -> Iterator[None]:
    """A client that has sent as much as it could, and reads nothing."""
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(str(host.socket))
        link.setblocking(False)
        try:
            while True:
                link.send(b'{"op":"status"}\n' * 50)
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            yield


def _flood(client: ClockdClient) -> None:
    while True:
        with suppress(RateLimited):
            client.status()


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000, help="random and mutated messages")
    parser.add_argument("--kills", type=int, default=100, help="kills of each kind")
    parser.add_argument("--connections", type=int, default=200, help="connections at once")
    parser.add_argument("--requests", type=int, default=2000, help="round trips")
    parser.add_argument("--seed", type=int, default=1, help="of the messages")
    options = parser.parse_args(arguments)
    print("# clockd on emulated A100s, wall time\n")
    print("\n".join(check_clients(options.connections, options.requests)), flush=True)
    lines, wrong = check_messages(options.messages, options.seed)
    print("\n" + "\n".join(lines), flush=True)
    print("\n" + "\n".join(check_kills(options.kills)), flush=True)
    for complaint in wrong:
        print(f"WRONG: {complaint}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
