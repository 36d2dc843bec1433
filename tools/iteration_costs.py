"""Who spends a rank's CPU time: the main thread's time is kept in accounts, by whoever runs; see tools/bench_iteration.py.

    python tools/iteration_costs.py FOLDER [--nproc N] SCRIPT.py ARGS...   as python -m megatron_energy.run; a file per rank in FOLDER

Every function that is hooked is wrapped twice: inside our wrapper (from there on the time is Megatron's) and outside of it (from there
on it is ours). Reading the thread's clock costs about as much as a hook does, so its own cost is measured and taken off.
"""

import atexit
import functools
import json
import os
import pickle
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from megatron_energy.cli import launch
from megatron_energy.megatron import attach, gradients, optimizer, p2p, torch_exchange
from megatron_energy.megatron.hooks import SCHEDULES
from megatron_energy.megatron.imports import apply_when_imported, replace

STOCK, HOOKS = "stock", "hooks"
SCHEDULE_MODULE = "megatron.core.pipeline_parallel.schedules"
P2P_MODULE = "megatron.core.pipeline_parallel.p2p_communication"
TRAINING_MODULE = "megatron.training.training"
CALIBRATION = 2_000  # readings of the clock

PARTS: tuple[tuple[str, str, str], ...] = (
    ("megatron_energy.megatron.runtime", "EnergyRuntime.on_iteration", "end of an iteration"),
    ("megatron_energy.megatron.runtime", "EnergyRuntime.on_log", "log interval"),
    ("megatron_energy.session.emulated_session", "EmulatedSession.iteration", "emulation: exchange"),
    ("megatron_energy.session.emulated_session", "Home.settle", "emulation: settling"),
    ("megatron_energy.session.emulated", "EmulatedDevice.advance", "emulation: device"),
    ("megatron_energy.session.controlled_session", "ControlledSession._batch", "records of the interval"),
    ("megatron_energy.session.conductor", "Conductor.take", "home: taking in"),
    ("megatron_energy.session.coordinator", "Coordinator.advance", "home: deciding"),
    ("megatron_energy.session.reporting", "Reporter.add", "home: RUN_DIR"),
    ("megatron_energy.session.reporting", "Reporter.write", "home: TensorBoard"),
    ("megatron_energy.session.reporting", "Reporter._draw", "home: picture, once"),
)
"""Module, function, account: what the time that is ours goes to, beside the hooks."""


class Account:
    """CPU time of the thread that makes it, by owner.

    Attributes:
        spent_ns: by owner.
        switches: by owner, how often the clock was read at the end of its time.
    """

    def __init__(self, clock: Callable[[], int] = time.thread_time_ns) -> None:
        self._clock, self._thread = clock, threading.get_ident()
        self.spent_ns: Counter[str] = Counter()
        self.switches: Counter[str] = Counter()
        self._owner, self._since_ns = STOCK, clock()

    def switch(self, owner: str) -> str:
        """From here on the time is this owner's; whose it was."""
        now_ns, before = self._clock(), self._owner
        self.spent_ns[before] += now_ns - self._since_ns
        self.switches[before] += 1
        self._owner, self._since_ns = owner, now_ns
        return before

    def of(self, owner: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose time is this owner's."""

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                return function(*args, **kwargs)
            before = self.switch(owner)
            try:
                return function(*args, **kwargs)
            finally:
                self.switch(before)

        return run

    def reading_ns(self) -> float:
        """What one switch costs its owner, as measured now."""
        trial = Account(self._clock)
        empty = trial.of("trial", lambda: None)
        for _ in range(CALIBRATION):
            empty()
        return (trial.spent_ns["trial"] + trial.spent_ns[STOCK]) / (2 * CALIBRATION)


class StockRequest:
    """A request of the communication library whose waiting is Megatron's time."""

    __slots__ = ("_request", "wait")

    def __init__(self, request: Any, account: Account, hooked: bool) -> None:
        wait = account.of(STOCK, request.wait)
        self._request, self.wait = request, wait if hooked else account.of(HOOKS, wait)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)


class Rank:
    """The measurement of one rank.

    Args:
        folder: where it is written.
        hooked: whether our hooks will be there; if not, the same places are measured all the same, for what measuring them costs.
    """

    def __init__(self, folder: Path, hooked: bool) -> None:
        self.folder, self.hooked, self.account = folder, hooked, Account()
        self.iterations: list[dict[str, Any]] = []
        self.sent: Counter[str] = Counter()
        self.library_ns: Counter[str] = Counter()
        self.library_calls: Counter[str] = Counter()
        self.readings_ns = [self.account.reading_ns()]

    def inside(self) -> None:
        """Before our hooks are installed: what they will wrap is Megatron's."""
        stock = functools.partial(self.account.of, STOCK)
        apply_when_imported(SCHEDULE_MODULE, lambda module: self._rewrap(module, stock))
        apply_when_imported(P2P_MODULE, self._stock_requests)
        for name in optimizer.MODULES:
            apply_when_imported(name, lambda module: self._rewrap_steps(module, stock))
        apply_when_imported(TRAINING_MODULE, self._count_iterations)

    def outside(self) -> None:
        """After they are installed: what wraps is ours."""
        hook = functools.partial(self.account.of, HOOKS)
        apply_when_imported(SCHEDULE_MODULE, lambda module: self._rewrap(module, hook))
        apply_when_imported(
            P2P_MODULE,
            lambda module: replace(module.P2PCommunicator, _communicate=hook(module.P2PCommunicator._communicate)),
        )
        for name in optimizer.MODULES:
            apply_when_imported(name, lambda module: self._rewrap_steps(module, hook))
        apply_when_imported(TRAINING_MODULE, lambda module: replace(module, training_log=hook(module.training_log)))
        replace(p2p.Handle, wait=hook(p2p.Handle.wait))
        for name in ("_finalize", "_start"):
            self._both_sides(name, hook)
        for module_name, path, owner in PARTS:
            apply_when_imported(module_name, functools.partial(self._part, path=path, owner=owner))
        for name in ("gather", "scatter", "broadcast"):
            self._exchange(name)
        apply_when_imported("megatron_energy.emulation.nvml", self._library)

    @staticmethod
    def _rewrap(module: Any, wrap: Callable[..., Any]) -> None:
        for name in ("forward_step", "backward_step", *SCHEDULES):
            replace(module, **{name: wrap(getattr(module, name))})

    @staticmethod
    def _rewrap_steps(module: Any, wrap: Callable[..., Any]) -> None:
        for found in list(vars(module).values()):
            if isinstance(found, type) and found.__module__ == module.__name__ and optimizer._is_optimizer(found) and "step" in vars(found):
                replace(found, step=wrap(vars(found)["step"]))

    def _both_sides(self, name: str, hook: Callable[..., Any]) -> None:
        """Of functions that our hooks put into Megatron's configuration while a schedule runs."""
        make = getattr(gradients, name)
        replace(gradients, **{name: lambda function, *rest: hook(make(self.account.of(STOCK, function), *rest))})

    def _stock_requests(self, module: Any) -> None:
        communicate = self.account.of(STOCK, module.P2PCommunicator._communicate)

        @functools.wraps(communicate)
        def run(*args: Any, **kwargs: Any) -> Any:
            *received, requests = communicate(*args, **kwargs)
            if isinstance(requests, dict):
                requests = {name: StockRequest(request, self.account, self.hooked) for name, request in requests.items()}
            elif isinstance(requests, list):
                requests = [StockRequest(request, self.account, self.hooked) for request in requests]
            return (*received, requests)

        replace(module.P2PCommunicator, _communicate=run)

    def _part(self, module: Any, path: str, owner: str) -> None:
        holder, name = path.split(".")
        found = getattr(module, holder)
        replace(found, **{name: self.account.of(owner, getattr(found, name))})

    def _exchange(self, name: str) -> None:
        """Counts what is sent: its size as it travels, pickled once more in nobody's time."""
        kind = torch_exchange.TorchExchange
        plain = self.account.of("exchange between ranks", getattr(kind, name))

        def run(exchange: Any, item: Any) -> Any:
            before = self.account.switch("measurement")
            if name == "gather" or exchange.rank == exchange.home:
                self.sent[name] += len(pickle.dumps(item))
            self.account.switch(before)
            return plain(exchange, item)

        replace(kind, **{name: run})

    def _library(self, module: Any) -> None:
        """Calls of the emulated libnvidia-ml, from any thread: on real GPUs the driver's code runs instead."""
        call = module.Function.__call__

        def run(function: Any, *arguments: Any) -> Any:
            thread = threading.current_thread()
            own = thread is threading.main_thread()
            before, since_ns = self.account.switch("emulated NVML") if own else "", time.thread_time_ns()
            try:
                return call(function, *arguments)
            finally:
                self.library_ns[thread.name] += time.thread_time_ns() - since_ns
                self.library_calls[thread.name] += 1
                if own:
                    self.account.switch(before)

        replace(module.Function, __call__=run)

    def _count_iterations(self, module: Any) -> None:
        log = self.account.of(STOCK, module.training_log)

        @functools.wraps(log)
        def run(*args: Any, **kwargs: Any) -> Any:
            before = self.account.switch("measurement")
            self.iterations.append(self.snapshot())
            self.account.switch(before)
            return log(*args, **kwargs)

        replace(module, training_log=run)

    def snapshot(self) -> dict[str, Any]:
        """All clocks now."""
        return {
            "wall_s": time.monotonic(),
            "process_ns": time.process_time_ns(),
            "spent_ns": dict(self.account.spent_ns),
            "switches": dict(self.account.switches),
            "threads_ns": _threads_ns(),
            "sent": dict(self.sent),
            "library_ns": dict(self.library_ns),
            "library_calls": dict(self.library_calls),
        }

    def write(self) -> None:
        """At the end of the process."""
        self.readings_ns.append(self.account.reading_ns())
        found = {"iterations": self.iterations, "reading_ns": sum(self.readings_ns) / len(self.readings_ns)}
        (self.folder / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(found))


def _threads_ns() -> dict[str, int]:
    """CPU time of Python's other threads, by name."""
    found: Counter[str] = Counter()
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and thread.ident is not None:
            found[thread.name] += time.clock_gettime_ns(time.pthread_getcpuclockid(thread.ident))
    return dict(found)


def measured(folder: Path, run_script: Callable[[launch.Launch], None]) -> Callable[[launch.Launch], None]:
    """``run_script`` with a measurement around it, in the process of each rank."""

    def run(found: launch.Launch) -> None:
        rank = Rank(folder, found.options.active)
        atexit.register(rank.write)
        rank.inside()
        if not found.options.active:
            rank.outside()
        install = attach.install

        def then_outside(*args: Any) -> Any:
            recorder = install(*args)
            rank.outside()
            return recorder

        replace(attach, install=then_outside)
        run_script(found)

    return run


def main() -> int:
    """The launcher, measured."""
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    replace(launch, run_script=measured(folder, launch.run_script))
    return launch.main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
