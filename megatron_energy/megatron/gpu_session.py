"""The session of a rank on this host's GPUs: CUDA's events where there is CUDA, the host's times elsewhere."""

from collections.abc import Callable
from typing import Any

import torch

from megatron_energy.gpus.host_events import HostEventSource
from megatron_energy.gpus.visible import gpu_for_cuda_device
from megatron_energy.megatron.recorder import Recorder
from megatron_energy.session.controlled_session import ControlledSession
from megatron_energy.session.controlled_start import Work, start
from megatron_energy.session.exchange import Exchange
from megatron_energy.session.facts import RankFacts
from megatron_energy.session.measured_session import MeasuredSession
from megatron_energy.session.options import EnergyOptions

Say = Callable[[str], None]


def cuda_device() -> int | None:
    """The CUDA device that this rank computes on; None on a host without CUDA, also where shims stand in for it."""
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
    return device if isinstance(device, int) else None


def measured(options: EnergyOptions, facts: RankFacts, exchange: Exchange, say: Say) -> MeasuredSession:
    """A session that only measures. Raises UserError where the GPU cannot be measured."""
    return MeasuredSession(options, facts, exchange, gpu_for_cuda_device(_device(facts)), say)


def controlled(options: EnergyOptions, facts: RankFacts, exchange: Exchange, recorder: Recorder, settled_at_log: bool, say: Say) -> Any:
    """A session that controls clocks, or one that only measures where that is not possible.

    Args:
        options: what the user asked for.
        facts: this rank's facts.
        exchange: to the other ranks.
        recorder: its points are timed, and its requests go to the controller.
        settled_at_log: Megatron waits for the GPU when it logs.
        say: prints one line for the user.

    Raises:
        UserError: the GPU cannot be measured, or a plan or profile does not fit.
    """
    gpu = gpu_for_cuda_device(_device(facts))
    session = start(options, facts, exchange, gpu, _work(settled_at_log), say)
    if isinstance(session, ControlledSession):
        recorder.request, recorder.mark = session.request, session.mark
        if cuda_device() is not None:
            from megatron_energy.megatron.cuda_events import hold_during_capture

            hold_during_capture(session.controller)
    return session


def _device(facts: RankFacts) -> int:
    device = cuda_device()
    return facts.local_rank if device is None else device


def _work(settled_at_log: bool) -> Work:
    if cuda_device() is None:
        return Work(HostEventSource(), settled_at_log=settled_at_log)
    from megatron_energy.megatron.cuda_events import CudaEventSource
    from megatron_energy.megatron.kernel_speed import MatrixProduct

    return Work(CudaEventSource(), MatrixProduct(), settled_at_log)
