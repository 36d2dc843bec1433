"""What NCCL's stream order gives Megatron and gloo does not."""

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from megatron_energy.megatron.imports import replace


class _SendWork:
    """A send's work object that keeps the sent memory alive until it has been waited for."""

    def __init__(self, work: Any, memory: torch.Tensor) -> None:
        self._work = work
        self._memory: torch.Tensor | None = memory

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        result = self._work.wait(*args, **kwargs)
        self._memory = None
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def _as_list(splits: Any) -> Any:
    return splits.tolist() if hasattr(splits, "tolist") else splits


def install() -> None:
    """Rebind isend (lifetime of the sent memory) and all_to_all_single (splits given as tensors).

    Schedules set ``output.data`` to an empty tensor right after an overlapped isend (deallocate_pipeline_outputs). On NCCL
    the stream order protects the bytes; gloo would read freed memory. An alias of the tensor pins the storage.
    """
    isend, all_to_all_single = c10d.isend, c10d.all_to_all_single

    def pinned_isend(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        alias = tensor.detach()  # own tensor object, same storage
        work = isend(alias, *args, **kwargs)
        return None if work is None else _SendWork(work, alias)

    def all_to_all(output: Any, input: Any, output_split_sizes: Any = None, input_split_sizes: Any = None, **kwargs: Any) -> Any:
        """MoE hands the splits over as CPU tensors when its tensors are not on CUDA."""
        return all_to_all_single(output, input, _as_list(output_split_sizes), _as_list(input_split_sizes), **kwargs)

    for module in (dist, c10d):  # both: P2POp checks identity against distributed_c10d.isend
        replace(module, isend=pinned_isend, all_to_all_single=all_to_all)
