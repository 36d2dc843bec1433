"""A GPT on one GPU, trained with megatron-core's own schedule and optimizer, for tools/device_check.py."""

import gc
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import schedules
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig


@dataclass(frozen=True)
class Size:
    """Sizes of the model and of an iteration."""

    layers: int = 12
    hidden: int = 1024
    heads: int = 16
    sequence: int = 1024
    vocabulary: int = 8192
    samples: int = 4  # of a microbatch
    microbatches: int = 8


TINY = Size(layers=2, hidden=32, heads=4, sequence=16, vocabulary=64, samples=1, microbatches=3)


@dataclass(frozen=True)
class Training:
    """What a training run gave.

    Attributes:
        losses: of each iteration, as float.hex(): equal only if every bit is.
        iterations_s: duration of each iteration, the GPU waited for at its end.
    """

    losses: tuple[str, ...]
    iterations_s: tuple[float, ...]


def start(cpu: bool) -> None:
    """One process, one rank."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with this
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # Megatron wants it
    dist.init_process_group("gloo" if cpu else "nccl", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel(1, 1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # costs time, and nothing here reads such memory


def stop() -> None:
    """The end of the process group."""
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


def build(size: Size, cpu: bool) -> tuple[Any, Any]:
    """The model, the same each time, and its optimizer."""
    torch.manual_seed(1234)
    tensor_parallel.model_parallel_cuda_manual_seed(1234, force_reset_rng=True)
    kind = torch.float32 if cpu else torch.bfloat16
    config = TransformerConfig(
        num_layers=size.layers, hidden_size=size.hidden, num_attention_heads=size.heads, use_cpu_initialization=True,
        params_dtype=kind, pipeline_dtype=kind, bf16=not cpu, hidden_dropout=0.0, attention_dropout=0.0, masked_softmax_fusion=False,
        bias_activation_fusion=False, bias_dropout_fusion=False, apply_rope_fusion=False, persist_layer_norm=False,
        gradient_accumulation_fusion=False,
    )  # fmt: skip
    gpt: Any = GPTModel(
        config=config, transformer_layer_spec=get_gpt_layer_local_spec(), vocab_size=size.vocabulary, max_sequence_length=size.sequence,
        position_embedding_type="learned_absolute", share_embeddings_and_output_weights=True,
    ).cuda()  # fmt: skip
    if not cpu:
        gpt = Float16Module(config, gpt)
    model = DistributedDataParallel(config, DistributedDataParallelConfig(), gpt)
    options = OptimizerConfig(optimizer="adam", lr=1e-4, clip_grad=1.0, bf16=not cpu, params_dtype=kind)
    optimizer = get_megatron_optimizer(options, [model])
    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize_model_grads
    return model, optimizer


def train(size: Size, iterations: int, cpu: bool) -> Training:
    """Train a new model from the same start for some iterations."""
    gc.collect()  # models refer to themselves: the one before is still there
    torch.cuda.empty_cache()
    model, optimizer = build(size, cpu)
    data = _batches(size)
    losses, iterations_s = [], []
    for _ in range(iterations):
        torch.cuda.synchronize()
        begin_s = time.perf_counter()
        model.zero_grad_buffer()
        optimizer.zero_grad()
        outputs = schedules.forward_backward_no_pipelining(
            forward_step_func=partial(_forward_step, size), data_iterator=data, model=model, num_microbatches=size.microbatches,
            seq_length=size.sequence, micro_batch_size=size.samples, forward_only=False,
        )  # fmt: skip
        optimizer.step()
        torch.cuda.synchronize()
        iterations_s.append(time.perf_counter() - begin_s)
        losses.append(float(sum(output["loss"] for output in outputs) / len(outputs)).hex())
    return Training(tuple(losses), tuple(iterations_s))


def _batches(size: Size) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Learnable sequences: token[t + 1] = (5 token[t] + 3) mod vocabulary; (samples, sequence) tokens and labels."""
    generator = torch.Generator().manual_seed(7)
    while True:
        tokens = [torch.randint(0, size.vocabulary, (size.samples, 1), generator=generator)]
        for _ in range(size.sequence):
            tokens.append((tokens[-1] * 5 + 3) % size.vocabulary)
        rows = torch.cat(tokens, 1)
        yield rows[:, :-1].contiguous().cuda(), rows[:, 1:].contiguous().cuda()


def _forward_step(size: Size, batch: Iterator[Any], model: Any) -> tuple[Any, Any]:
    tokens, labels = next(batch)
    position = torch.arange(size.sequence, device=tokens.device).unsqueeze(0)
    mask = torch.tril(torch.ones(1, 1, size.sequence, size.sequence, device=tokens.device)) < 0.5
    return model(tokens, position, mask, labels=labels), _loss


def _loss(output: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    loss = output.float().mean()
    return loss, {"loss": loss.detach().clone()}
