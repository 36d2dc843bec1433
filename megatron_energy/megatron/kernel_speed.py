"""A kernel whose duration shows the SM clock: a matrix product, timed by CUDA events. Used before training only."""

from typing import Any

import torch

from megatron_energy.gpus.errors import GpuError

SIZE = 4096  # 137 GFLOP: 0.4 to 2 ms on data-centre GPUs, long against the launch and short against a switch


class MatrixProduct:
    """Made at its first call; draws no random numbers."""

    def __init__(self, size: int = SIZE) -> None:
        self._size = size
        self._ready: tuple[Any, Any, Any, Any] | None = None

    def __call__(self) -> float:
        """Run one product, wait for it, and return its duration in s. Raises GpuError, for want of memory too."""
        try:
            if self._ready is None:
                self._ready = self._make()
                self._run(*self._ready)  # the first one loads the library
            return self._run(*self._ready)
        except RuntimeError as error:
            raise GpuError(str(error).partition("\n")[0]) from error

    def _make(self) -> tuple[Any, Any, Any, Any]:
        factor = torch.ones(self._size, self._size, dtype=torch.bfloat16, device="cuda")
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        return factor, torch.empty_like(factor), begin, end

    @staticmethod
    def _run(factor: Any, product: Any, begin: Any, end: Any) -> float:
        begin.record()
        torch.matmul(factor, factor, out=product)
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3
