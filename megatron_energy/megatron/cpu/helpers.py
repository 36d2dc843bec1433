"""Helper processes of a rank: they get the shims too, and the one that only keeps a queue is forked."""

import contextlib
import multiprocessing
import multiprocessing.spawn
import os
from multiprocessing.managers import SyncManager
from pathlib import Path
from typing import Any

from megatron_energy.megatron.fork import die_with_parent
from megatron_energy.megatron.imports import apply_when_imported, replace, when_imported

_kept: dict[str, Any] = {}  # the manager, as long as the process lives, and its queue


class _Shims:
    """What a spawned process unpickles before anything else: that makes it install the shims when it imports torch."""

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return install_with_torch, ()


def install_with_torch() -> None:
    """Install the shims in this process as soon as it imports torch."""
    from megatron_energy.megatron import cpu

    apply_when_imported("torch", lambda _torch: cpu.install())


def results_queue(*_mode: str, **_modes: str) -> Any:
    """The queue of a manager process, the same at every call; for the results of writing a checkpoint.

    Megatron spawns that process: another interpreter per rank, which imports the script once more. A fork does, as no CUDA is
    in the way.
    """
    if not _kept:
        manager = SyncManager(ctx=multiprocessing.get_context("fork"))
        manager.start(initializer=_leave_the_rank)
        _kept.update(manager=manager, queue=manager.Queue())
    return _kept["queue"]


def _leave_the_rank() -> None:
    """In the forked process: no connection of the rank stays open after the rank itself has ended."""
    die_with_parent()
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if descriptor > 2 and str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith("socket:"):
                os.close(descriptor)


def install() -> None:
    """Rebind how spawned processes are prepared, and Megatron's queue."""
    prepare = multiprocessing.spawn.get_preparation_data

    def with_shims(name: str) -> dict[str, Any]:
        return {"megatron_energy": _Shims(), **prepare(name)}

    replace(multiprocessing.spawn, get_preparation_data=with_shims)

    @when_imported("megatron.core.dist_checkpointing.strategies.filesystem_async")
    def results(module: Any) -> None:
        for name in ("get_write_results_queue", "_get_write_results_queue"):
            if hasattr(module, name):
                replace(module, **{name: results_queue})
