"""A rank's side of the scheduler, between the hooks and the session."""

import atexit
import dataclasses
import os
import sys
from collections.abc import Callable
from typing import Any

from megatron_energy.emulation.children import reach_child_processes
from megatron_energy.emulation.install import install_from_environment
from megatron_energy.errors import UserError
from megatron_energy.gpus.errors import GpuError
from megatron_energy.gpus.library import open_nvml
from megatron_energy.megatron import attach
from megatron_energy.megatron.folders import require_writable
from megatron_energy.megatron.imports import loaded
from megatron_energy.megatron.recorder import Recorder
from megatron_energy.megatron.runtime_protocol import Requests
from megatron_energy.megatron.stopping import Stopping
from megatron_energy.observe.run_directory import check_free
from megatron_energy.records.steps import Program
from megatron_energy.session.facts import RankFacts
from megatron_energy.session.gpu_freq import refuse_gpu_freq
from megatron_energy.session.options import EnergyOptions

MEASURING = ("measure",)
"""Policies that ask nothing of a real GPU's clock."""


def say(line: str) -> None:
    """One line for the user."""
    print(f"megatron-energy: {line}", flush=True)


UNENDED = 16
"""Schedule calls without an optimizer step of Megatron's after which we say that no iteration ever ends."""


TRAINING_LOOP = "megatron.training.training"
OWN_LOG_INTERVAL = 10
"""Iterations between log calls where the script has a loop of its own rather than megatron.training's."""


class EnergyRuntime:
    """Implements :class:`~megatron_energy.megatron.runtime_protocol.Runtime`.

    Attributes:
        iterations: number of the last training iteration that has ended.
        logs_itself: every so many iterations, where no loop of megatron.training and no trainer calls :meth:`on_log`.
        at_exit: what the end of the process does; whoever knows earlier that it ends calls it then.
    """

    def __init__(self, options: EnergyOptions) -> None:
        self.options = options
        self.requests: Requests = {}
        self.evaluation_requests: Requests = {}
        self.recorder: Recorder | None = None  # whose points are timed where clocks of this host's GPUs are controlled
        self._facts: RankFacts | None = None
        self._session: Any = None
        self.iterations = 0
        self.logs_itself = True
        self._unended = 0
        self._said = self._closed = False
        self.at_exit: Callable[[], None] = self.close

    def on_schedule(self, facts: RankFacts) -> None:
        """First schedule call: the session starts. Later ones with other sizes: clocks go to maximum, with another number of microbatches
        until there is a plan for that.
        """
        before, self._facts = self._facts, facts
        if self._closed:  # a trainer has detached us, and goes on
            return
        if before is None:
            self._session = _session(self.options, facts, self.recorder)
        elif self._session is not None:
            if dataclasses.replace(before, microbatches=facts.microbatches) == facts:  # a batch size ramp-up
                self._session.resized(facts.microbatches)
            else:
                self._session.stale(f"{_changes(before, facts)} during the run")
            self.requests, self.evaluation_requests = self._session.requests, self._session.evaluation_requests

    def on_iteration(self, program: Program, evaluation: bool) -> None:
        """End of an iteration."""
        if self._session is None:
            return
        self._unended = 0
        if not evaluation:
            self.iterations = _megatron_iteration() or self.iterations + 1
        self._session.iteration(self.iterations, program, evaluation)
        self.requests, self.evaluation_requests = self._session.requests, self._session.evaluation_requests
        logs_itself = self.logs_itself and loaded(TRAINING_LOOP) is None
        if not evaluation and logs_itself and self.iterations % OWN_LOG_INTERVAL == 0:
            self.on_log(self.iterations, None)

    def on_broken(self, reason: str) -> None:
        """The running iteration cannot be recorded faithfully."""
        self._unended += 1
        if self._session is not None:
            self._session.broken(reason)  # said when the iteration ends ...
        if self._session is None or self._unended == UNENDED:  # ... if it ever does
            self._say_off(reason)

    def _say_off(self, reason: str) -> None:
        self._say_once(f"clocks are left as they are, nothing is measured: {reason}")

    def _say_once(self, line: str) -> None:
        if not self._said and _on_home_rank():
            say(line)
        self._said = True

    def on_log(self, iteration: int, writer: Any) -> None:
        """Megatron's log interval."""
        if self._session is not None:
            self._session.log(iteration, _with_wandb(writer))
            self.requests, self.evaluation_requests = self._session.requests, self._session.evaluation_requests

    def script_ended(self) -> None:
        """The script has come to its end without an error."""
        if self._facts is None:
            self._say_once("no training schedule of Megatron was called: nothing was measured")

    def close(self) -> None:
        """The run is over."""
        session, self._session = self._session, None
        self._closed, self.requests, self.evaluation_requests = True, {}, {}
        if session is not None:
            session.close()


def _session(options: EnergyOptions, facts: RankFacts, recorder: Recorder | None) -> Any:
    exchange = _exchange()
    if options.device == "emulated":
        from megatron_energy.session.emulated_session import EmulatedSession

        return EmulatedSession(options, facts, exchange, say)
    from megatron_energy.megatron import gpu_session

    if options.policy in MEASURING or recorder is None:
        return gpu_session.measured(options, facts, exchange, say)
    settled_at_log = loaded(TRAINING_LOOP) is not None  # its timers wait for the GPU before it logs
    return gpu_session.controlled(options, facts, exchange, recorder, settled_at_log, say)


def _exchange() -> Any:
    from megatron_energy.megatron.torch_exchange import TorchExchange

    return TorchExchange()


def _changes(before: RankFacts, now: RankFacts) -> str:
    """``microbatches changed from 8 to 16``, for every fact that differs."""
    names = [f.name for f in dataclasses.fields(RankFacts) if getattr(before, f.name) != getattr(now, f.name)]
    return ", ".join(f"{name} changed from {getattr(before, name)} to {getattr(now, name)}" for name in names)


def _with_wandb(writer: Any) -> Any:
    """A writer whose scalars go to Megatron's W&B run too, where there is one: on the last rank, with --wandb-project."""
    wandb = getattr(loaded("megatron.training.global_vars"), "_GLOBAL_WANDB_WRITER", None)
    if wandb is None:
        return writer
    from megatron_energy.observe.wandb import WithWandb

    return WithWandb(writer, wandb, say)


def _on_home_rank() -> bool:
    """Whether this is the last rank, where Megatron prints too."""
    dist = loaded("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return bool(dist.get_rank() == dist.get_world_size() - 1)
    return int(os.environ.get("RANK", "0")) == int(os.environ.get("WORLD_SIZE", "1")) - 1


def _megatron_iteration() -> int | None:
    """The number of the iteration that is just ending, the first is 1, where megatron.training counts it."""
    module = sys.modules.get("megatron.training.global_vars")
    args = getattr(module, "_GLOBAL_ARGS", None)
    current = getattr(args, "curr_iteration", None)
    return None if current is None else int(current) + 1


def check(options: EnergyOptions) -> None:
    """What can be refused before anything is started.

    Raises:
        UserError: no NVML, a policy that this device cannot run, clocks set by Slurm too, an unknown GPU or model, a file that cannot
            be read, a RUN_DIR that cannot be written.
    """
    refuse_gpu_freq(options.policy, os.environ)
    _check_files(options)
    if options.device == "emulated":
        return
    if install_from_environment() is not None:
        reach_child_processes()  # the watchdog is one
    try:
        open_nvml()
    except GpuError as error:
        raise UserError(str(error)) from error
    _check_control(options)


def _check_control(options: EnergyOptions) -> None:
    """Whether the policy can be had on this host's GPUs. Where clocks cannot be changed, that is said, and training goes on."""
    if options.policy in MEASURING or options.policy == "maximum":
        return
    if options.policy == "dry-run":
        if options.plan is None and options.profile is None:
            raise UserError(
                "--energy-policy dry-run requests no clock, so on this host's GPUs it learns nothing: "
                "give --energy-profile or --energy-plan"
            )
        return
    from megatron_energy.session.actuation import outlook

    possible = outlook()
    if not possible.possible and os.environ.get("RANK", "0") == "0":
        say(f"clocks will be left as they are, energy is measured only: {possible.reason}")


def _check_files(options: EnergyOptions) -> None:
    """Everything that is named in the options can be read, and RUN_DIR can be written."""
    from megatron_energy.emulation.catalog import load
    from megatron_energy.emulation.models import named
    from megatron_energy.profiles.files import load_profile

    if options.plan is not None:
        from megatron_energy.planning.plan_file import load_plan

        load_plan(options.plan)
    if options.profile is not None:
        load_profile(options.profile)
    if options.device == "emulated":
        load(options.emulated_gpu)
        model = options.emulated_model
        if model is not None:
            load_profile(model) if model.endswith(".csv") else named(model)
    require_writable(options.run_dir, "choose another --energy-dir")
    check_free(options.run_dir)


_started: list[EnergyRuntime] = []


def started() -> bool:
    """Whether a scheduler was started in this process."""
    return bool(_started)


def start(options: EnergyOptions) -> EnergyRuntime:
    """Hook a runtime into Megatron, and end it with the process, also one that a signal ends. The options have passed :func:`check`."""
    runtime = EnergyRuntime(options)
    _started.append(runtime)
    runtime.recorder = attach.install(options, runtime)
    stopping = Stopping()
    stopping.install()
    runtime.at_exit = _close_in(os.getpid(), runtime.close, stopping)
    atexit.register(runtime.at_exit)
    return runtime


def _close_in(pid: int, close: Callable[[], None], stopping: Stopping) -> Callable[[], None]:
    def at_exit() -> None:
        stopping.closing = True
        if os.getpid() == pid:
            close()

    return at_exit
