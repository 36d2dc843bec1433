"""What the hooks rely on in Megatron, looked for where it is used: a version is recognised by what its modules have, not by its number.

A version that lacks one of these things, or has a function without a parameter that is read by name, is left alone, with the reason.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from megatron_energy.megatron.imports import loaded

Needs: TypeAlias = Mapping[str, Sequence[str]]
"""Names in a module (``Class.method`` too), each with the parameters by which a call of it is read."""

SCHEDULES = (
    "forward_backward_no_pipelining",
    "forward_backward_pipelining_without_interleaving",
    "forward_backward_pipelining_with_interleaving",
)
"""Megatron's schedules, in megatron.core.pipeline_parallel.schedules."""

IN_SCHEDULES: Needs = {
    "forward_step": ("model",),
    "backward_step": ("output_tensor",),
    "get_model_config": (),
    **dict.fromkeys(SCHEDULES, ("model", "num_microbatches", "forward_only")),
}
"""megatron.core.pipeline_parallel.schedules. Where Megatron passes them, ``vp_stage`` and ``current_microbatch`` are read too."""

_TRANSFER = ("tensor_send_next", "tensor_send_prev", "recv_prev", "recv_next", "wait_on_reqs")

BY_METHOD: Needs = {"P2PCommunicator._communicate": _TRANSFER}
BY_FUNCTION: Needs = {"_communicate": _TRANSFER}
"""megatron.core.pipeline_parallel.p2p_communication: one way through which all transfers go, a method or (before 0.14) a function."""

IN_OPTIMIZER: Needs = {"MegatronOptimizer": ()}
"""megatron.core.optimizer.optimizer."""

IN_PARALLEL_STATE: Needs = dict.fromkeys(
    (
        "model_parallel_is_initialized",
        *(f"get_{axis}_parallel_world_size" for axis in ("tensor_model", "context", "expert_model", "data", "pipeline_model")),
        *(f"get_{axis}_parallel_rank" for axis in ("tensor_model", "context", "data", "pipeline_model")),
    ),
    (),
)
"""megatron.core.parallel_state."""

_FIELDS = (
    "finalize_model_grads_func",
    "grad_sync_func",
    "overlap_p2p_comm",
    "deallocate_pipeline_outputs",
    "microbatch_group_size_per_vp_stage",
)
IN_CONFIGURATION: Needs = {f"ModelParallelConfig.{field}": () for field in _FIELDS}
"""megatron.core.model_parallel_config."""

IN_TRAINING: Needs = {"training_log": ("iteration",), "train": (), "get_args": (), "get_tensorboard_writer": ()}
"""megatron.training.training, where a script uses it."""


def missing(module: Any, *ways: Needs) -> str | None:
    """What ``module`` lacks, such as ``backward_step(output_tensor)``; None: all of one way is there.

    Args:
        module: a module of Megatron that has been imported.
        ways: any of these will do; what the last one lacks is told.
    """
    lacking = None
    for needs in ways:
        lacking = next((told for name, parameters in needs.items() if (told := _lack(module, name, parameters))), None)
        if lacking is None:
            return None
    return lacking


def _lack(owner: Any, name: str, parameters: Sequence[str]) -> str | None:
    found = owner
    for part in name.split("."):
        if part in getattr(found, "__dataclass_fields__", ()):
            return None  # it may have no default, and then the class has no attribute of that name
        if not hasattr(found, part):
            return name
        found = getattr(found, part)
    if not parameters:
        return None
    if not callable(found):
        return f"{name}()"
    known = inspect.signature(found).parameters
    return next((f"{name}({parameter})" for parameter in parameters if parameter not in known), None)


def told_missing(module_name: str, lacking: str) -> str:
    """The reason, for the user."""
    version = getattr(loaded("megatron.core.package_info"), "__version__", "of an unknown version")
    return f"megatron-core {version} has no {module_name}.{lacking}, which the hooks need (0.12 to 0.19 have it)"
