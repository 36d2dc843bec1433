"""The scheduler in a trainer that calls megatron.core itself, without the launcher: ``megatron_energy.attach(...)``."""

from types import TracebackType
from typing import Any

from megatron_energy.errors import UserError
from megatron_energy.megatron import runtime
from megatron_energy.megatron.runtime import EnergyRuntime
from megatron_energy.session.options import PREFIX, split_arguments

ALREADY = "the scheduler is attached to this process already: leave out either the --energy flags of the launcher or this call"


class Attached:
    """A running scheduler, to be used as a context manager or closed by hand, on every rank.

    Args:
        energy: this rank's side of it; None: the policy is ``off``.
    """

    def __init__(self, energy: EnergyRuntime | None) -> None:
        self._energy = energy
        self._step = self._handed_in = 0  # the trainer's number at the last call of log, and ours: a resumed trainer counts on

    def log(self, iteration: int, writer: Any = None) -> None:
        """Hand in what was recorded, and write it where anybody reads it. All ranks call it, in the same iteration.

        Without a call every 10th iteration does the same, without a writer. On this host's GPUs a plan comes into force at such calls.

        Args:
            iteration: the trainer's number of the last one that has ended, the first is 1; the step in TensorBoard.
            writer: a ``torch.utils.tensorboard.SummaryWriter`` on the last rank, or None.
        """
        if self._energy is not None:
            self._step, self._handed_in = iteration, self._energy.iterations
            self._energy.logs_itself = False
            self._energy.on_log(iteration, writer)

    def close(self) -> None:
        """The training is over on all ranks: hand in the rest, give the clocks back, print the report. The end of the process does the
        same, except for the rest that was not handed in.
        """
        energy, self._energy = self._energy, None
        if energy is not None:
            left = energy.iterations - self._handed_in
            if left:
                energy.on_log(self._step + left, None)
            energy.script_ended()
            energy.close()

    def __enter__(self) -> "Attached":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
        elif self._energy is not None:  # other ranks may not come to a gathering
            self._energy.close()


def attach(policy: str = "segments", **flags: object) -> Attached:
    """Attach the scheduler to this process, on every rank, before the schedule is chosen.

    Call it before ``get_forward_backward_func()``: a schedule that was taken before is not seen. Megatron may be imported already.

    Args:
        policy: as ``--energy-policy``.
        flags: further ``--energy-*`` flags, with underscores: ``max_switches=4``, ``dir="runs/energy"``, ``device="emulated"``.

    Raises:
        UserError: an unknown flag, a value that is not allowed, something that :func:`megatron_energy.megatron.runtime.check` refuses,
            or a scheduler that is attached already.
    """
    words = [f"{PREFIX}{name.replace('_', '-')}={value}" for name, value in {"policy": policy, **flags}.items() if value is not None]
    options, _ = split_arguments(words)
    if not options.active:
        return Attached(None)
    if runtime.started():
        raise UserError(ALREADY)
    runtime.check(options)
    return Attached(runtime.start(options))
