"""What Megatron was configured to do, and what of it cannot be recorded."""

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from megatron_energy.session.facts import RankFacts

COMBINED = "--overlap-moe-expert-parallel-comm runs a forward and a backward interleaved, one clock for both: leave it out to save energy"
FULL_GRAPH = "a CUDA graph of the full iteration hides the operations from the host: use per-layer graphs to save energy"
HYBRID_CONTEXT = "hybrid context parallelism changes the operations of every iteration, so there is no fixed schedule to plan"
VARIABLE_LENGTHS = "variable sequence lengths change the time of every microbatch, so there is no fixed schedule to plan"
MULTI_MODULE = "pipelines of several modules have no single schedule to plan"
OWN_GROUPS = "process groups of the script's own, without megatron.core.parallel_state: the layout of the ranks is unknown"


def layout_known() -> bool:
    """Whether Megatron's process groups say where this rank stands; scripts may bring groups of their own instead."""
    from megatron.core import parallel_state

    return bool(parallel_state.model_parallel_is_initialized())


def refusal(config: Any, call: Mapping[str, Any]) -> str | None:
    """Why this schedule call cannot be recorded; None if it can.

    Args:
        config: Megatron's model configuration.
        call: arguments of the schedule call.
    """
    forward_only = bool(call.get("forward_only"))
    if getattr(config, "overlap_moe_expert_parallel_comm", False) and not forward_only:
        return COMBINED
    graph = getattr(config, "cuda_graph_impl", None)
    scopes = getattr(config, "cuda_graph_scope", None) or ()
    scope_names = [str(getattr(s, "name", s)) for s in ([scopes] if isinstance(scopes, str) else scopes)]
    if graph == "full_iteration" or (graph == "local" and "full_iteration" in scope_names):
        return FULL_GRAPH
    if getattr(config, "hybrid_context_parallel", False):
        return HYBRID_CONTEXT
    communicator = call.get("p2p_communicator")
    if (communicator is not None and not hasattr(communicator, "pp_group")) or _several_pipelines():
        return MULTI_MODULE
    if getattr(config, "variable_seq_lengths", False) or getattr(config, "mtp_standalone", False):
        return VARIABLE_LENGTHS
    return None


def _several_pipelines() -> bool:
    """Whether this rank is in several pipelines: up to 0.13, an encoder with its own tensor parallelism can have that."""
    groups = sys.modules.get("megatron.core.parallel_state")
    return isinstance(getattr(groups, "_PIPELINE_MODEL_PARALLEL_GROUP", None), list)


def facts(config: Any, models: Sequence[Any], call: Mapping[str, Any]) -> RankFacts:
    """This rank's facts, from Megatron's configuration, its process groups and the arguments of a schedule call.

    Args:
        config: Megatron's model configuration (TransformerConfig).
        models: model chunks of this rank.
        call: arguments of the schedule call.
    """
    import megatron.core
    import torch.distributed
    from megatron.core import parallel_state as groups

    chunks = len(models)
    return RankFacts(
        rank=torch.distributed.get_rank(),
        **_coordinates(groups),
        chunks=chunks,
        microbatches=int(call["num_microbatches"]),
        group_size=int(config.microbatch_group_size_per_vp_stage) if chunks > 1 else None,
        overlap_p2p=bool(config.overlap_p2p_comm),
        warmup_flush=bool(getattr(config, "overlap_p2p_comm_warmup_flush", False)),
        deallocate_outputs=bool(config.deallocate_pipeline_outputs),
        layers=_size(config, "num_layers"),
        hidden_size=_size(config, "hidden_size"),
        ffn_hidden_size=_size(config, "ffn_hidden_size"),
        attention_heads=_size(config, "num_attention_heads"),
        vocabulary=_size(innermost(models[0]), "vocab_size"),
        sequence_length=int(call.get("seq_length") or 0),
        microbatch_size=int(call.get("micro_batch_size") or 0),
        settings=settings(config),
        sequence_parallel=bool(getattr(config, "sequence_parallel", False)),
        core_version=core_version(str(megatron.core.__version__)),
        node=os.environ.get("SLURMD_NODENAME") or platform.node(),
        local_rank=int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0"))),
        iterations=_iterations(),
        ramp_up=_ramps_up(_training_arguments()),
    )


SETTINGS = (
    "params_dtype",
    "fp8",
    "fp8_recipe",
    "fp4",
    "transformer_impl",
    "attention_backend",
    "num_query_groups",
    "kv_channels",
    "multi_latent_attention",
    "window_size",
    "gated_linear_unit",
    "num_moe_experts",
    "moe_router_topk",
    "moe_ffn_hidden_size",
    "moe_shared_expert_intermediate_size",
    "moe_layer_freq",
    "moe_token_dispatcher_type",
    "moe_grouped_gemm",
    "mtp_num_layers",
    "recompute_granularity",
    "recompute_method",
    "recompute_num_layers",
    "recompute_modules",
    "cpu_offloading",
    "tp_comm_overlap",
    "cuda_graph_impl",
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "pipeline_model_parallel_layout",
)
"""Fields of Megatron's configuration that change the time of an operation or where layers are, beyond the sizes of the model."""

_BELONG_TO = {"moe_": "num_moe_experts", "fp8_": "fp8", "recompute_": "recompute_granularity"}
"""Settings whose names begin so mean nothing while the other one is off; Megatron fills them in all the same."""

_OFF = (None, False, 0, "", "none")


def settings(config: Any) -> str:
    """The :data:`SETTINGS` that are on, such as ``params_dtype=bfloat16 num_query_groups=8``."""
    idle = tuple(prefix for prefix, owner in _BELONG_TO.items() if not getattr(config, owner, None))
    names = [name for name in SETTINGS if not name.startswith(idle)]
    values = {name: getattr(config, name, None) for name in names}
    return " ".join(f"{name}={_word(value)}" for name, value in values.items() if value not in _OFF and value != [])


def _word(value: Any) -> str:
    """One word for a number, a dtype, an enumerator or a list of them."""
    if isinstance(value, list | tuple):
        return ",".join(map(_word, value))
    return str(getattr(value, "name", value)).removeprefix("torch.").replace(" ", "")


def _iterations() -> int:
    """How many iterations megatron.training is going to run, from where a checkpoint left off; 0: not told."""
    args = _training_arguments()
    total, done = getattr(args, "train_iters", None), getattr(args, "iteration", None)
    return max(int(total) - int(done or 0), 0) if total is not None else 0


def _training_arguments() -> Any:
    """megatron.training's arguments, where a script uses it; None elsewhere."""
    return getattr(sys.modules.get("megatron.training.global_vars"), "_GLOBAL_ARGS", None)


def _ramps_up(arguments: Any) -> bool:
    """Whether the batch size is going to change: --rampup-batch-size, from 0.18 on --step-batch-size-schedule."""
    return any(getattr(arguments, name, None) for name in ("rampup_batch_size", "step_batch_size_schedule"))


def core_version(told: str) -> str:
    """megatron-core's release, without the commit that it appends: that of any git repository around it, such as the project of a user."""
    return told.partition("+")[0]


def _coordinates(groups: Any) -> dict[str, int]:
    """Parallel sizes and this rank's place in them, from megatron.core.parallel_state."""
    return {
        "tensor": groups.get_tensor_model_parallel_world_size(),
        "context": groups.get_context_parallel_world_size(),
        "expert": groups.get_expert_model_parallel_world_size(),
        "data": groups.get_data_parallel_world_size(),
        "pipeline": groups.get_pipeline_model_parallel_world_size(),
        "tensor_rank": groups.get_tensor_model_parallel_rank(),
        "context_rank": groups.get_context_parallel_rank(),
        "data_rank": groups.get_data_parallel_rank(),
        "stage": groups.get_pipeline_model_parallel_rank(),
    }


def _size(owner: Any, name: str) -> int:
    return int(getattr(owner, name, None) or 0)


def innermost(model: Any) -> Any:
    """The model inside its wrappers (data parallelism, half precision)."""
    while hasattr(model, "module"):
        model = model.module
    return model
