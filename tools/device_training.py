"""The parts of tools/device_check.py that train: what hooks, events and a controller cost, and whether they change a loss."""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import device_gpt
import torch
from device_findings import Finding
from device_gpt import TINY, Size, Training

from megatron_energy.gpus.actuators import DryRunActuator
from megatron_energy.gpus.controller import ClockController
from megatron_energy.gpus.counts import ControllerReport
from megatron_energy.gpus.issuer import Settings
from megatron_energy.megatron import attach
from megatron_energy.megatron.cuda_events import CudaEventSource
from megatron_energy.megatron.recorder import Recorder
from megatron_energy.records.steps import ClockRequest, Program
from megatron_energy.session.directive import TransitionPoint
from megatron_energy.session.options import EnergyOptions

HOOK_LIMIT_US = 20.0
SLOWDOWN_LIMIT = 0.02  # of an iteration: below it, the scatter between runs of this length
CLOCKS_MHZ = (1000, 1100)  # asked for in turn; the requests go nowhere


@contextmanager
def idle(_duration_s: float) -> Iterator[None]:
    """No load."""
    yield


@contextmanager
def busy(duration_s: float) -> Iterator[None]:
    """Matrix products enqueued in advance for about ``duration_s`` seconds: large ones, since CUDA queues some 1,000 kernels only."""
    matrix = torch.randn(16384, 16384, device="cuda").to(torch.bfloat16)
    product = torch.empty_like(matrix)
    one_s = _matrix_product_s(matrix, product)
    for _ in range(min(int(duration_s / one_s) + 1, 900)):
        torch.mm(matrix, matrix, out=product)
    yield
    torch.cuda.synchronize()


def _matrix_product_s(matrix: Any, product: Any, number: int = 10) -> float:
    torch.mm(matrix, matrix, out=product)
    torch.cuda.synchronize()
    begin_s = time.perf_counter()
    for _ in range(number):
        torch.mm(matrix, matrix, out=product)
    torch.cuda.synchronize()
    return (time.perf_counter() - begin_s) / number


class Watcher:
    """A runtime for the hooks that keeps the number of iterations and why one could not be recorded."""

    def __init__(self) -> None:
        self.requests: dict[TransitionPoint, tuple[ClockRequest, ...]] = {}
        self.evaluation_requests: dict[TransitionPoint, tuple[ClockRequest, ...]] = {}
        self.steps = 0
        self.broken = ""

    def on_schedule(self, facts: Any) -> None:
        """Nothing depends on the sizes."""

    def on_iteration(self, program: Program, evaluation: bool) -> None:
        """Count its steps."""
        self.steps = len(program)

    def on_broken(self, reason: str) -> None:
        """Keep the reason."""
        self.broken = reason

    def on_log(self, iteration: int, writer: Any) -> None:
        """Nothing is logged."""


def points(size: Size) -> list[TransitionPoint]:
    """Begin and end of every operation of an iteration."""
    return [
        (kind, 0, microbatch, edge)
        for microbatch in range(size.microbatches)
        for kind in ("forward", "backward")
        for edge in ("begin", "end")
    ]


class OperationTimer:
    """Records an event at every point, and reads the times when all is over."""

    def __init__(self, at: list[TransitionPoint]) -> None:
        self._at = at
        self._events: list[tuple[int, Any]] = []

    def reach(self, request: ClockRequest) -> None:
        """A point was reached on the host; ``request`` carries its number as its clock."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append((request.clock_mhz, event))

    def durations_ms(self) -> dict[str, list[float]]:
        """GPU time of every operation by kind; the first iteration's are left out."""
        torch.cuda.synchronize()
        found: dict[str, list[float]] = defaultdict(list)
        for (number, begin), (_, end) in list(zip(self._events[::2], self._events[1::2], strict=True))[len(self._at) // 2 :]:
            found[self._at[number][0]].append(begin.elapsed_time(end))
        return found


def training_findings(iterations: int, cpu: bool) -> list[Finding]:
    """Train plainly, with hooks, with an event at every operation, with a controller, and once more with hooks alone."""
    size = TINY if cpu else Size()
    device_gpt.start(cpu)
    device_gpt.train(size, 2, cpu)  # libraries are loaded, memory is allocated
    plain = device_gpt.train(size, iterations, cpu)
    watcher = Watcher()
    recorder = attach.install(EnergyOptions(policy="measure"), watcher)
    assert recorder is not None
    hooked = device_gpt.train(size, iterations, cpu)
    timer = OperationTimer(points(size))
    watcher.requests = {point: (ClockRequest(number),) for number, point in enumerate(points(size))}
    timed = with_requests(recorder, timer.reach, size, iterations, cpu)
    hook_us: list[float] = []
    controlled, report = with_controller(recorder, hook_us, size, iterations, cpu)
    watcher.requests = {}
    again = device_gpt.train(size, iterations, cpu)
    device_gpt.stop()
    runs = {"hooks": hooked, "hooks, an event per operation": timed, "hooks, controller (dry run)": controlled, "hooks again": again}
    return [
        Finding("training", "iteration without hooks, median ms", 1e3 * _typical_s(plain)),
        Finding("training", "recorded steps of an iteration", watcher.steps, not watcher.broken, watcher.broken or "recorded faithfully"),
        *(compared(name, run, plain, cpu) for name, run in runs.items()),
        *(identical(name, run, plain) for name, run in runs.items()),
        *operation_findings(timer),
        *controller_findings(report, hook_us, len(points(size)) * iterations, cpu),
    ]


def with_requests(recorder: Recorder, reach: Callable[[ClockRequest], None], size: Size, iterations: int, cpu: bool) -> Training:
    """Train while every request that is reached goes to ``reach``."""
    recorder.request = reach
    try:
        return device_gpt.train(size, iterations, cpu)
    finally:
        recorder.request = None


def with_controller(recorder: Recorder, hook_us: list[float], size: Size, iterations: int, cpu: bool) -> tuple[Training, ControllerReport]:
    """Train while every request goes to a controller that asks nobody; what each cost the hook is appended to ``hook_us``."""
    settings = Settings(lead_s=1e3, least_interval_s=0.0)
    controller = ClockController(DryRunActuator(), CudaEventSource(), settings)
    controller.start()

    def reach(request: ClockRequest) -> None:
        begin_s = time.perf_counter()
        controller.request(CLOCKS_MHZ[request.clock_mhz % 2])
        hook_us.append(1e6 * (time.perf_counter() - begin_s))

    training = with_requests(recorder, reach, size, iterations, cpu)
    while controller.report().counts.settled() < len(hook_us) and not controller.report().stopped:
        time.sleep(0.01)
    controller.close()
    return training, controller.report()


def _typical_s(training: Training) -> float:
    """Median iteration, the first left out."""
    return statistics.median(training.iterations_s[1:])


def compared(name: str, run: Training, plain: Training, cpu: bool) -> Finding:
    """How much longer an iteration is."""
    slowdown = _typical_s(run) / _typical_s(plain) - 1
    note = f"{1e3 * _typical_s(run):.4g} ms"
    return Finding("training", f"{name}: slowdown, %", 100 * slowdown, None if cpu else slowdown < SLOWDOWN_LIMIT, note)


def identical(name: str, run: Training, plain: Training) -> Finding:
    """Whether all losses are the same, bit by bit."""
    same = run.losses == plain.losses
    first = next((n for n, (a, b) in enumerate(zip(run.losses, plain.losses, strict=True), 1) if a != b), 0)
    value = "identical" if same else f"differ from iteration {first} on"
    return Finding("training", f"{name}: losses", value, same, f"{len(run.losses)} iterations, last {float.fromhex(run.losses[-1]):.6g}")


def operation_findings(timer: OperationTimer) -> list[Finding]:
    """Durations of operations on the GPU."""
    found = []
    for kind, durations_ms in timer.durations_ms().items():
        spread = statistics.pstdev(durations_ms) / statistics.mean(durations_ms) if any(durations_ms) else 0.0
        note = f"{len(durations_ms)} of them, standard deviation {100 * spread:.2g}%"
        found.append(Finding("operations", f"{kind}, median ms on the GPU", statistics.median(durations_ms), None, note))
    return found


def controller_findings(report: ControllerReport, hook_us: list[float], expected: int, cpu: bool) -> list[Finding]:
    """How the controller did with the ``expected`` number of requests."""
    ordered = sorted(hook_us)
    median_us = ordered[len(ordered) // 2]
    delay = report.delay_s
    return [
        Finding("controller", "requests settled", report.counts.settled(), report.counts.settled() == expected, f"of {expected}"),
        Finding("controller", "delay behind the GPU, median ms", None if delay is None else 1e3 * delay.median_s),
        Finding("controller", "delay behind the GPU, p99 ms", None if delay is None else 1e3 * delay.p99_s),
        Finding("controller", "a request in the hook, median us", median_us, None if cpu else median_us < HOOK_LIMIT_US),
        Finding("controller", "a request in the hook, p99 us", ordered[-(-99 * len(ordered) // 100) - 1]),
        Finding("controller", "stopped", report.stopped or "no", not report.stopped),
    ]
