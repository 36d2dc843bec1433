"""A tiny GPT trained with megatron-core alone, for tests: run it through the launcher.

``--cases FILE`` names a JSON object of trainings, by name, each a list of the arguments below; they run one after the other.
Every rank writes OUT/<name>-<rank>.json: losses and gradient norms as float.hex(), a hash of the final parameters, and with
``--record`` what the hooks recorded (they stay installed from then on). Nothing in it knows about CPU emulation.
"""

import argparse
import hashlib
import inspect
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig

VOCABULARY = 64
SEQUENCE = 16


def parse(words: list[str]) -> argparse.Namespace:
    """One training's arguments."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    sizes = {"tensor": 1, "pipeline": 1, "virtual": 1, "microbatches": 4, "group": 0, "steps": 2, "layers": 8, "experts": 0, "evaluate": 0}
    for name, default in sizes.items():
        parser.add_argument("--" + name, type=int, default=default)
    switches = "overlap warmup-flush keep-outputs overlap-grad distributed-optimizer sequence-parallel moe-overlap bf16"
    for name in switches.split():
        parser.add_argument("--" + name, action="store_true")
    parser.add_argument("--record", action="store_true", help="install the hooks and write what they recorded")
    parser.add_argument("--swap-backward", action="store_true", help="rank 0 runs its first two backwards in exchanged order")
    parser.add_argument("--fail", type=int, help="this rank raises after its first step")
    return parser.parse_args(words)


def accepted(function: Callable[..., Any], **kwargs: Any) -> dict[str, Any]:
    """Those arguments that this version's function has."""
    return {name: value for name, value in kwargs.items() if name in inspect.signature(function).parameters}


def initialize(args: argparse.Namespace) -> None:
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=args.tensor,
        pipeline_model_parallel_size=args.pipeline,
        virtual_pipeline_model_parallel_size=args.virtual if args.virtual > 1 else None,
        expert_model_parallel_size=2 if args.experts else 1,
        **accepted(parallel_state.initialize_model_parallel, create_gloo_process_groups=False),
    )
    torch.manual_seed(1234)
    tensor_parallel.model_parallel_cuda_manual_seed(1234)


def configuration(args: argparse.Namespace) -> TransformerConfig:
    moe = {
        "num_moe_experts": args.experts,
        "expert_model_parallel_size": 2,
        "moe_token_dispatcher_type": "alltoall",
        "moe_router_topk": 2,
        "add_bias_linear": False,
        **accepted(TransformerConfig, overlap_moe_expert_parallel_comm=args.moe_overlap),
    }
    kind = torch.bfloat16 if args.bf16 else torch.float32
    return TransformerConfig(
        num_layers=args.layers, hidden_size=32, num_attention_heads=4,
        tensor_model_parallel_size=args.tensor, pipeline_model_parallel_size=args.pipeline,
        virtual_pipeline_model_parallel_size=args.virtual if args.virtual > 1 else None,
        sequence_parallel=args.sequence_parallel, pipeline_dtype=kind, params_dtype=kind, bf16=args.bf16,
        use_cpu_initialization=True, hidden_dropout=0.0, attention_dropout=0.0,
        overlap_p2p_comm=args.overlap, batch_p2p_comm=not args.overlap, overlap_p2p_comm_warmup_flush=args.warmup_flush,
        microbatch_group_size_per_vp_stage=(args.group or args.pipeline) if args.virtual > 1 else None,
        deallocate_pipeline_outputs=not args.keep_outputs, masked_softmax_fusion=False, bias_activation_fusion=False,
        bias_dropout_fusion=False, apply_rope_fusion=False, persist_layer_norm=False, gradient_accumulation_fusion=False,
        **(moe if args.experts else {}),
    )  # fmt: skip


def virtual_stage(stage: int) -> dict[str, int]:
    """What tells a chunk which one it is: an argument, before megatron-core 0.13 a global."""
    told = accepted(parallel_state.is_pipeline_first_stage, vp_stage=stage)
    if not told:
        parallel_state.set_virtual_pipeline_model_parallel_rank(stage)
    return told


def build(args: argparse.Namespace, config: TransformerConfig) -> tuple[list[Any], Any]:
    """The model chunks, wrapped for data parallelism, and their optimizer."""
    specification = get_gpt_layer_local_spec(num_experts=args.experts or None)
    chunks = []
    for stage in range(args.virtual):
        virtual = virtual_stage(stage) if args.virtual > 1 else {}
        chunk = GPTModel(
            config=config, transformer_layer_spec=specification, vocab_size=VOCABULARY, max_sequence_length=SEQUENCE,
            pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, **virtual),
            post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, **virtual),
            position_embedding_type="learned_absolute", share_embeddings_and_output_weights=True, parallel_output=True, **virtual,
        )  # fmt: skip
        chunks.append(chunk)
    if args.bf16:
        chunks = [Float16Module(config, chunk) for chunk in chunks]
    data = DistributedDataParallelConfig(overlap_grad_reduce=args.overlap_grad, use_distributed_optimizer=args.distributed_optimizer)
    model = [DistributedDataParallel(config, data, chunk, disable_bucketing=(i > 0)) for i, chunk in enumerate(chunks)]
    for chunk in model:
        chunk.broadcast_params()
    options = OptimizerConfig(
        optimizer="adam", lr=3e-3, clip_grad=1.0, use_distributed_optimizer=args.distributed_optimizer,
        bf16=args.bf16, params_dtype=config.params_dtype,
    )  # fmt: skip
    optimizer = get_megatron_optimizer(options, model, **accepted(get_megatron_optimizer, use_gloo_process_groups=False))
    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize_model_grads
    if args.overlap_grad:
        config.no_sync_func = [chunk.no_sync for chunk in model]
        config.grad_sync_func = [chunk.start_grad_sync for chunk in model]
        if len(model) == 1:
            config.no_sync_func, config.grad_sync_func = config.no_sync_func[0], config.grad_sync_func[0]
    return model, optimizer


def batches(seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Learnable sequences: token[t + 1] = (5 token[t] + 3) mod vocabulary; (1, SEQUENCE) tokens and labels."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        tokens = [torch.randint(0, VOCABULARY, (1, 1), generator=generator)]
        for _ in range(SEQUENCE):
            tokens.append((tokens[-1] * 5 + 3) % VOCABULARY)
        row = torch.cat(tokens, 1)
        yield row[:, :-1].contiguous(), row[:, 1:].contiguous()


def forward_step(batch: Iterator[Any], model: Any, return_schedule_plan: bool = False) -> tuple[Any, Callable[..., Any]]:
    tokens, labels = next(batch)
    position = torch.arange(SEQUENCE).unsqueeze(0)
    mask = torch.tril(torch.ones(1, 1, SEQUENCE, SEQUENCE)) < 0.5
    run = model.build_schedule_plan if return_schedule_plan else model
    return run(tokens, position, mask, labels=labels), partial(_loss)


def _loss(output: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    loss = output.float().mean()
    return loss, {"loss": loss.detach().clone()}


def swap_first_backwards() -> Callable[[], None]:
    """Exchange the outputs of this process's first two backwards: what runs then is not what the schedule says.

    Only on the first stage, whose inputs carry no gradient. Returns what undoes it.
    """
    from megatron.core.pipeline_parallel import schedules

    hooked, forward = schedules.backward_step, schedules.forward_step
    outputs: list[Any] = []
    calls: list[int] = []

    def keep(*args: Any, **kwargs: Any) -> Any:
        result = forward(*args, **kwargs)
        outputs.append(result[0])
        return result

    def swapped(input_tensor: Any, output_tensor: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        output = outputs[2 - len(calls)] if len(calls) <= 2 else output_tensor
        return hooked(input_tensor, output, *args, **kwargs)

    def restore() -> None:
        schedules.forward_step, schedules.backward_step = forward, hooked

    schedules.forward_step, schedules.backward_step = keep, swapped
    return restore


def train(args: argparse.Namespace, model: list[Any], optimizer: Any) -> dict[str, list[str]]:
    schedule = get_forward_backward_func()
    data = [batches(7919 * parallel_state.get_data_parallel_rank()) for _ in model]
    interleaved = len(model) > 1
    common = {
        "forward_step_func": forward_step,
        "data_iterator": data if interleaved else data[0],
        "model": model if interleaved else model[0],
        "num_microbatches": args.microbatches,
        "seq_length": SEQUENCE,
        "micro_batch_size": 1,
    }
    losses, norms = [], []
    for step in range(args.steps):
        for chunk in model:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        outputs = schedule(**common, forward_only=False)
        _, norm, _ = optimizer.step()
        norms.append(float(norm).hex())
        if outputs:
            losses.append(float(sum(output["loss"] for output in outputs) / len(outputs)).hex())
        if args.fail == dist.get_rank() and step == 0:
            raise RuntimeError("asked to fail")
    for _ in range(args.evaluate):
        schedule(**common, forward_only=True)
    return {"losses": losses, "grad_norms": norms}


def digest(model: list[Any]) -> str:
    """SHA-256 of all parameters."""
    found = hashlib.sha256()
    for chunk in model:
        for parameter in chunk.parameters():
            found.update(parameter.detach().float().contiguous().numpy().tobytes())
    return found.hexdigest()


def run(words: list[str], collect: Callable[[], Any]) -> dict[str, Any]:
    """One training, from process groups to results."""
    args = parse(words)
    if args.moe_overlap and not accepted(TransformerConfig, overlap_moe_expert_parallel_comm=True):
        return {"cannot": "this megatron-core has no overlap_moe_expert_parallel_comm"}
    collector = collect() if args.record else None
    initialize(args)
    restore = swap_first_backwards() if args.swap_backward and dist.get_rank() == 0 else None
    model, optimizer = build(args, configuration(args))
    result: dict[str, Any] = {**train(args, model, optimizer), "parameters": digest(model)}
    if restore is not None:
        restore()
    if collector is not None:
        result.update(collector.report())
    destroy()
    return result


def destroy() -> None:
    """Leave the process groups, so that another training can come."""
    dist.barrier()
    parallel_state.destroy_model_parallel()
    parallel_state._EMBEDDING_GLOBAL_RANKS = parallel_state._POSITION_EMBEDDING_GLOBAL_RANKS = None  # up to 0.13 they survive


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    from collector import installed  # beside this script

    dist.init_process_group("gloo")
    for name, words in json.loads(args.cases.read_text()).items():
        result = run(words, installed)
        (args.out / f"{name}-{os.environ['RANK']}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
