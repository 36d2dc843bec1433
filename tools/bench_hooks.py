"""What the hooks cost on the host, per operation, in one unloaded process.

    python tools/bench_hooks.py [--calls 20000] [--in-training] [--json]

Stand-ins with the signatures of Megatron's functions do nothing; the difference between the wrapped and the plain call is the hook.
Requests are registered at every transition point, as under a per-operation plan. No torch and no Megatron is needed.

--in-training: as between the operations of a training whose clocks are controlled: every point is marked too, and before every call
other data fills the caches. The last line sums it up for an iteration of the quick start's pipeline.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from megatron_energy.gpus.host_events import HostEventSource
from megatron_energy.megatron import operations, p2p
from megatron_energy.megatron.recorder import Recorder
from megatron_energy.megatron.schedule_call import ScheduleCall, Tracker
from megatron_energy.records.steps import ClockRequest
from megatron_energy.session.marks import Marks

LIMIT_US = 20.0  # a hook may cost this much
MICROBATCHES = 64  # of one iteration
CACHES = bytearray(16 << 20)  # more than a core's own
ITERATION = {"forward": 16, "backward": 16, "exchange, overlapped, 2 waits": 33}  # of a middle stage: 2 chunks, 8 microbatches


def forward_step(
    forward_step_func: Any, data_iterator: Any, model: Any, num_microbatches: Any, input_tensor: Any, forward_data_store: Any, config: Any,
    cp_group_size: Any, collect_non_loss_data: Any = False, checkpoint_activations_microbatch: Any = None, is_first_microbatch: Any = False,
    current_microbatch: Any = None, vp_stage: Any = None, is_last_stage: Any = True,
) -> tuple[Any, Any]:  # fmt: skip
    """Megatron's signature; the output is what the caller hands in."""
    return input_tensor, 0


def backward_step(input_tensor: Any, output_tensor: Any, output_tensor_grad: Any, config: Any) -> None:
    """Megatron's signature."""


class Request:
    """A finished request."""

    def wait(self) -> None:
        """Nothing to wait for."""


class P2PCommunicator:
    """Megatron's class, as far as the hooks know it."""

    def _communicate(
        self,
        *,
        tensor_send_next: Any,
        tensor_send_prev: Any,
        recv_prev: bool,
        recv_next: bool,
        tensor_shape: Any,
        wait_on_reqs: bool = True,
    ) -> tuple[Any, Any, Any]:
        return None, None, {"send_next": Request(), "recv_prev": Request()}


class Bench:
    """The stand-ins, wrapped, inside a running schedule call."""

    def __init__(self, in_training: bool = False) -> None:
        self.in_training = in_training
        self.recorder = Recorder()
        self.marks = Marks(HostEventSource())
        if in_training:
            self.recorder.mark = self.marks.mark
        self.tracker = Tracker()
        self.schedules = SimpleNamespace(forward_step=forward_step, backward_step=backward_step)
        self.communication = SimpleNamespace(P2PCommunicator=type("P2PCommunicator", (P2PCommunicator,), {}))
        operations.wrap(self.schedules, self.recorder, self.tracker)
        p2p.wrap(self.communication, self.recorder, self.tracker)
        self.models = [object(), object()]
        request = (ClockRequest(1200), ClockRequest(1410, 0.01))
        self.requests = {
            (kind, chunk, microbatch, edge): request
            for kind in ("forward", "backward")
            for chunk in range(2)
            for microbatch in range(MICROBATCHES)
            for edge in ("begin", "end")
        }

    def begin(self) -> None:
        """A new iteration."""
        self.marks.times(self.marks.end())
        self.recorder.take()
        self.recorder.begin_iteration(self.requests)
        self.tracker.recorded = ScheduleCall(self.models, {"num_microbatches": MICROBATCHES})


def measure(calls: int, call: Callable[[int, Any], Any], begin: Callable[[], None], in_training: bool = False) -> list[float]:
    """Microseconds of each call; ``begin`` runs, untimed, before every iteration's worth of calls."""
    samples = []
    clock = time.perf_counter_ns
    outputs = [[object()] for _ in range(MICROBATCHES)]
    for number in range(calls):
        microbatch = number % MICROBATCHES
        if microbatch == 0:
            begin()
        output = outputs[microbatch]
        if in_training:
            bytes(CACHES)
        start = clock()
        call(microbatch, output)
        samples.append((clock() - start) / 1e3)
    return samples


def rounds(bench: Bench) -> dict[str, tuple[Callable[[int, Any], Any], Callable[[int, Any], Any]]]:
    """Per operation: the wrapped call and the plain one."""
    model, schedules = bench.models[1], bench.schedules
    wrapped, plain = bench.communication.P2PCommunicator(), P2PCommunicator()
    sent = {"tensor_send_next": object(), "tensor_send_prev": None, "recv_prev": True, "recv_next": False, "tensor_shape": ()}

    def pair(function: Callable[..., Any]) -> Callable[[int, Any], Any]:
        """A forward, then the backward of its output."""

        def run(microbatch: int, output: Any) -> None:
            schedules.forward_step(None, None, model, MICROBATCHES, output, [], None, 1, current_microbatch=microbatch, vp_stage=1)
            function(None, output, None, None)

        return run

    def overlapped(communicator: Any) -> Callable[[int, Any], Any]:
        def run(_microbatch: int, _output: Any) -> None:
            _, _, requests = communicator._communicate(**sent, wait_on_reqs=False)
            requests["recv_prev"].wait()
            requests["send_next"].wait()

        return run

    def forward(function: Callable[..., Any]) -> Callable[[int, Any], Any]:
        return lambda microbatch, output: function(
            None, None, model, MICROBATCHES, output, [], None, 1, current_microbatch=microbatch, vp_stage=1
        )

    def backward(_microbatch: int, output: Any) -> None:
        forward_step(None, None, model, MICROBATCHES, output, [], None, 1, current_microbatch=_microbatch, vp_stage=1)
        backward_step(None, output, None, None)

    return {
        "forward": (forward(schedules.forward_step), forward(forward_step)),
        "forward + backward": (pair(schedules.backward_step), backward),
        "exchange, blocking": (lambda m, o: wrapped._communicate(**sent), lambda m, o: plain._communicate(**sent)),
        "exchange, overlapped, 2 waits": (overlapped(wrapped), overlapped(plain)),
    }


def quantiles(samples: list[float]) -> tuple[float, float]:
    """Median and 99th percentile."""
    return statistics.median(samples), statistics.quantiles(samples, n=100)[98]


def per_iteration_ms(found: dict[str, dict[str, float]]) -> float:
    """Of all hooks of an iteration, by the medians."""
    median_us = {name: cost["median_us"] for name, cost in found.items()}
    median_us["backward"] = median_us["forward + backward"] - median_us["forward"]
    return sum(count * median_us[name] for name, count in ITERATION.items()) / 1e3


def results(calls: int, in_training: bool = False) -> dict[str, dict[str, float]]:
    """Cost per operation in microseconds: wrapped minus plain, medians and 99th percentiles."""
    bench = Bench(in_training)
    found = {}
    for name, (wrapped, plain) in rounds(bench).items():
        measure(calls // 10, wrapped, bench.begin)  # warm up
        with_hook = quantiles(measure(calls, wrapped, bench.begin, in_training))
        without = quantiles(measure(calls, plain, bench.begin, in_training))
        found[name] = {"median_us": round(with_hook[0] - without[0], 2), "p99_us": round(with_hook[1] - without[1], 2)}
    return found


def main(argv: list[str] | None = None) -> int:
    """Print the table, or one JSON object; 1 if a median is over the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--calls", type=int, default=20_000, help="calls of each kind (default: %(default)s)")
    parser.add_argument("--in-training", action="store_true", help="between other work, and with marks")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    found = results(max(args.calls, 1000), args.in_training)
    if args.json:
        print(json.dumps(found))
    else:
        print(f"{'hook':32}{'median':>10}{'p99':>10}   microseconds, wrapped minus plain (limit {LIMIT_US:g})")
        for name, cost in found.items():
            print(f"{name:32}{cost['median_us']:10.2f}{cost['p99_us']:10.2f}")
        print(f"an iteration of 16 forwards, 16 backwards and 33 exchanges: {per_iteration_ms(found):.2f} ms")
    return int(any(cost["median_us"] > LIMIT_US for cost in found.values()))


if __name__ == "__main__":
    sys.exit(main())
