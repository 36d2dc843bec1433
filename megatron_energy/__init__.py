"""Energy scheduler for Megatron-LM training: plans the GPU clocks of every rank so that no time is lost."""

import importlib
from typing import Any

__version__ = "0.1.0"


def attach(policy: str = "segments", **flags: object) -> Any:
    """Attach the scheduler to a trainer of your own: see :func:`megatron_energy.megatron.attached.attach` and docs/attach.md."""
    # By name: `import megatron_energy` brings in nothing, and the clock daemon's sources do not lead to the training layers.
    return importlib.import_module("megatron_energy.megatron.attached").attach(policy, **flags)
