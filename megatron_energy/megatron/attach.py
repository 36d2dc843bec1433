"""Where the scheduler is attached to a training process."""

from megatron_energy.megatron.hooks import Hooks
from megatron_energy.megatron.recorder import Recorder
from megatron_energy.megatron.runtime_protocol import Runtime
from megatron_energy.session.options import EnergyOptions


def install(options: EnergyOptions, runtime: Runtime) -> Recorder | None:
    """Hook ``runtime`` into Megatron, in this process. Call it before the training loop starts; Megatron may be imported already.

    Args:
        options: what the user asked for; nothing is installed unless a policy is active.
        runtime: told about schedules, iterations and log intervals.

    Returns:
        The recorder: set its ``request`` to send clock requests to a controller rather than into the program. None if nothing
        was installed.
    """
    if not options.active:
        return None
    recorder = Recorder(on_broken=runtime.on_broken)
    Hooks(recorder, runtime).install()
    return recorder
