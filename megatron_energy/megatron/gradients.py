"""Gradient reduction: wraps the functions that a model's configuration holds, while a schedule call runs."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from megatron_energy.megatron.recorder import Recorder


@contextlib.contextmanager
def recorded(config: Any, models: Sequence[Any], recorder: Recorder) -> Iterator[None]:
    """Record finalize_model_grads_func and grad_sync_func of ``config``; the originals come back at the end."""
    finalize, starts = config.finalize_model_grads_func, config.grad_sync_func
    if finalize is not None:
        config.finalize_model_grads_func = _finalize(finalize, recorder)
    if starts is not None:
        config.grad_sync_func = _starts(starts, len(models), recorder)
    try:
        yield
    finally:
        config.finalize_model_grads_func, config.grad_sync_func = finalize, starts


def _finalize(finalize: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    @functools.wraps(finalize)
    def run(*args: Any, **kwargs: Any) -> Any:
        recorder.begin_grad_sync()
        result = finalize(*args, **kwargs)
        recorder.end_grad_sync()
        return result

    return run


def _starts(starts: Any, chunks: int, recorder: Recorder) -> Any:
    """One function per chunk, as the interleaved schedule wants them; a single one as the plain schedule does."""
    functions = list(starts) if isinstance(starts, list) else [starts] * chunks
    wrapped = [_start(function, chunk, recorder) for chunk, function in enumerate(functions)]
    return wrapped if isinstance(starts, list) or chunks > 1 else wrapped[0]


def _start(start: Callable[..., Any], chunk: int, recorder: Recorder) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        recorder.start_grad_sync(chunk)
        return start(*args, **kwargs)

    return run


def reduces_in_backward(config: Any, models: Sequence[Any], first_stage: bool) -> bool:
    """Whether a chunk's reduction starts inside its last backward, rather than by a call of grad_sync_func.

    Megatron's schedules do so with overlapped reduction when there is no grad_sync_func, without a pipeline, and in the plain
    schedule on the first stage.
    """
    if not getattr(getattr(models[0], "ddp_config", None), "overlap_grad_reduce", False):
        return False
    return config.grad_sync_func is None or (len(models) == 1 and first_stage)
