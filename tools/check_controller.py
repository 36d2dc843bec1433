"""The clock controller under wall time, on this host: a Markdown table of each part.

    python tools/check_controller.py [--requests 300] [--rounds 20] [--gpus 8]

1. One controller on an emulated stream while other threads of the process are busy in Python: how late requests are issued, whether
   they stay in order, whether late raises are counted as they are, and what a request costs the hook.
2. One process per emulated GPU of a node whose driver serves one request at a time: all switch at the same moments. Figures of the
   node are emulated (6 ms at the driver per request); delays are this host's.
"""

import argparse
import itertools
import multiprocessing
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pynvml

from megatron_energy.emulation.install import install
from megatron_energy.emulation.streams import HostStream
from megatron_energy.gpus.actuators import NvmlActuator
from megatron_energy.gpus.controller import ClockController
from megatron_energy.gpus.counts import Counts, Quantiles
from megatron_energy.gpus.issuer import Settings
from megatron_energy.gpus.latency import LatencyProbe, SwitchingLatency
from megatron_energy.gpus.turns import NodeTurns
from megatron_energy.gpus.visible import all_gpus

LEAD_S = 0.005  # of part 1: a raise issued later than this counts as late


class TimedActuator:
    """Keeps when it was asked for which clock."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, int]] = []

    def set_max_clock(self, clock_mhz: int) -> None:
        """Note it."""
        self.calls.append((time.monotonic(), clock_mhz))

    def release(self) -> None:
        """Note it."""
        self.set_max_clock(0)


@contextmanager
def busy_threads(number: int) -> Iterator[None]:
    """Threads that compute in Python all the time."""
    stopping = threading.Event()

    def work() -> None:
        count = 0
        while not stopping.is_set():
            for step in range(10_000):
                count += step

    threads = [threading.Thread(target=work, daemon=True) for _ in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopping.set()
        for thread in threads:
            thread.join()


@dataclass(frozen=True)
class Delays:
    """What one run of part 1 found."""

    in_order: bool
    delay: Quantiles
    hook: Quantiles
    late: int
    counts: Counts


def delays(requests: int, busy: int, switch_interval_s: float | None, seed: int = 1) -> Delays:
    """Ask for clocks up and down in turn, 4 to 12 ms of work apart, and compare with when the stream really got there."""
    generator = random.Random(seed)
    stream, actuator = HostStream(), TimedActuator()
    controller = ClockController(actuator, stream, Settings(lead_s=LEAD_S, least_interval_s=0.0))
    controller.start(switch_interval_s)
    due_s, hook_s, asked = [], [], []
    with busy_threads(busy):
        for number in range(requests):
            stream.enqueue(generator.uniform(0.004, 0.012))
            clock_mhz = 900 + number if number % 2 == 0 else 1410 + number  # each clock once, so that calls can be told apart
            begin_s = time.perf_counter()
            controller.request(clock_mhz)
            hook_s.append(time.perf_counter() - begin_s)
            due_s.append(stream.done_s)
            asked.append(clock_mhz)
            time.sleep(0.006 if number % 4 else 0.012)  # the host runs ahead of the GPU by a little
        while controller.report().counts.settled() < requests:
            time.sleep(0.01)
    controller.close()
    calls = actuator.calls[:requests]
    late_s = [at_s - due for (at_s, _), due in zip(calls, due_s, strict=True)]
    delay, hook = Quantiles.of(late_s), Quantiles.of(hook_s)
    assert delay is not None and hook is not None
    late = sum(delay_s > LEAD_S for delay_s in late_s[1::2])
    return Delays([mhz for _, mhz in calls] == asked, delay, hook, late, controller.report().counts)


def part_one(requests: int) -> list[str]:
    """The rows of part 1."""
    rows = [
        "| busy threads | switch interval | in order | delay median / p99 / ms | hook median / p99 / us | late raises: true / counted |",
        "|---|---|---|---|---|---|",
    ]
    for busy, interval_s in ((0, None), (2, None), (2, 0.001), (2, 0.0002)):
        found = delays(requests, busy, interval_s)
        interval = "5 ms (Python's)" if interval_s is None else f"{1e3 * interval_s:g} ms"
        delay_ms = f"{1e3 * found.delay.median_s:.2f} / {1e3 * found.delay.p99_s:.2f}"
        hook_us = f"{1e6 * found.hook.median_s:.1f} / {1e6 * found.hook.p99_s:.1f}"
        order = "yes" if found.in_order else "NO"
        rows.append(f"| {busy} | {interval} | {order} | {delay_ms} | {hook_us} | {found.late} / {found.counts.late_raises} |")
    return rows


@dataclass(frozen=True)
class NodeRun:
    """What one process of part 2 found: its latency, and when its raises and lowers were done after they were due, in s."""

    latency: SwitchingLatency
    raises_s: list[float]
    lowers_s: list[float]
    counts: Counts


class DoneActuator(NvmlActuator):
    """Keeps when its calls ended."""

    def __init__(self, gpu: Any) -> None:
        super().__init__(gpu)
        self.ended: list[tuple[float, int]] = []

    def set_max_clock(self, clock_mhz: int) -> None:
        """Ask, then note it."""
        super().set_max_clock(clock_mhz)
        self.ended.append((time.monotonic(), clock_mhz))


def node_process(folder: str, rank: int, gpus: int, rounds: int, polite: bool, barrier: Any, leads: Any, results: Any) -> None:
    """One GPU's process: measures latency with the others, then half of the GPUs rise while the others fall, in turn.

    All use the longest lead of the node: whose turn at the driver comes last is chance.
    """
    install(f"a100-sxm4-80gb:{gpus}", Path(folder))
    gpu = all_gpus()[rank]
    pynvml.nvmlLib.gpus[rank].set_load(0.5)  # an idle GPU would not show the clock that is in force
    latency = LatencyProbe(NvmlActuator(gpu), gpu, (1410, 900)).measure(10, barrier.wait, gpus, rank)
    actuator, stream = DoneActuator(gpu), HostStream()
    turns = NodeTurns(Path(folder) / "turns", rank, gpus) if polite else None
    leads[rank] = latency.lead_s
    barrier.wait()
    settings = Settings(lead_s=max(leads), in_force_s=latency.in_force_s, least_interval_s=0.0)
    controller = ClockController(actuator, stream, settings, readings=gpu, turns=turns)
    controller.start()
    due_s = []
    for number in range(rounds):
        barrier.wait()
        stream.enqueue(0.02)
        controller.request(1410 if (number + rank) % 2 else 900)
        due_s.append(stream.done_s)
        while controller.report().counts.settled() <= number:
            time.sleep(0.002)
    controller.close()
    took = [(end_s - due, mhz) for (end_s, mhz), due in zip(actuator.ended, due_s, strict=True)][2:]
    raises_s, lowers_s = [took_s for took_s, mhz in took if mhz == 1410], [took_s for took_s, mhz in took if mhz == 900]
    results.put(NodeRun(latency, raises_s, lowers_s, controller.report().counts))


def node_runs(gpus: int, rounds: int, polite: bool) -> list[NodeRun]:
    """All processes of a node."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        barrier, leads, results = context.Barrier(gpus, timeout=120), context.Array("d", gpus), context.Queue()
        arguments = [(folder, rank, gpus, rounds, polite, barrier, leads, results) for rank in range(gpus)]
        processes = [context.Process(target=node_process, args=one) for one in arguments]
        for process in processes:
            process.start()
        found = [results.get(timeout=300) for _ in processes]
        for process in processes:
            process.join()
    return found


def milliseconds(durations_s: list[float]) -> str:
    """Median and 99th percentile."""
    found = Quantiles.of(durations_s)
    return "none" if found is None else f"{1e3 * found.median_s:.1f} / {1e3 * found.p99_s:.1f}"


def part_two(gpus: int, rounds: int) -> list[str]:
    """The rows of part 2."""
    rows = [
        "| raises before lowers | call alone, median / ms | call together, median / worst / ms | lead / ms "
        "| raise done, median / p99 / ms | lower done, median / p99 / ms | raises | late |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for polite in (False, True):
        runs = node_runs(gpus, rounds, polite)
        together = [run.latency.together_s for run in runs if run.latency.together_s is not None]
        raises_s = list(itertools.chain.from_iterable(run.raises_s for run in runs))
        lowers_s = list(itertools.chain.from_iterable(run.lowers_s for run in runs))
        alone_ms = 1e3 * sorted(run.latency.call_s.median_s for run in runs)[len(runs) // 2]
        together_ms = [1e3 * sorted(t.median_s for t in together)[len(together) // 2], 1e3 * max(t.p99_s for t in together)]
        lead_ms = 1e3 * max(run.latency.lead_s for run in runs)
        late = sum(run.counts.late_raises for run in runs)
        rows.append(
            f"| {'yes' if polite else 'no'} | {alone_ms:.1f} | {together_ms[0]:.1f} / {together_ms[1]:.1f} | {lead_ms:.1f} "
            f"| {milliseconds(raises_s)} | {milliseconds(lowers_s)} | {len(raises_s)} | {late} |"
        )
    return rows


def main(argv: list[str] | None = None) -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--requests", type=int, default=300, help="of part 1 (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=20, help="of part 2 (default: %(default)s)")
    parser.add_argument("--gpus", type=int, default=8, help="of part 2 (default: %(default)s)")
    args = parser.parse_args(argv)
    print(f"One controller, {args.requests} requests; a raise is late after {1e3 * LEAD_S:g} ms\n")
    print("\n".join(part_one(args.requests)))
    print(f"\nA node of {args.gpus} emulated GPUs, half of them rising while the others fall; latencies are emulated\n")
    print("\n".join(part_two(args.gpus, args.rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
