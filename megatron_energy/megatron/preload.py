"""What the parent imports before it forks: whatever the script will import, and what torch would load on first use."""

import ast
import contextlib
import importlib
import warnings
from pathlib import Path

ROOTS = ("torch", "megatron", "numpy")


def imported_modules(script: Path) -> list[str]:
    """Modules under :data:`ROOTS` that the script's import statements name, in order, without running it.

    ``from a.b import c`` gives ``a.b`` and ``a.b.c`` (which may be no module). A script that does not parse gives none: running
    it will say so better.
    """
    try:
        tree = ast.parse(script.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError):
        return []
    names: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names[node.module] = None
            names.update((f"{node.module}.{alias.name}", None) for alias in node.names)
    return [name for name in names if name.split(".")[0] in ROOTS]


def preload(script: Path, tensorboard: bool) -> None:
    """Import in the parent what every rank would import, and let torch load what its first optimizer step loads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Megatron misses here (Apex, Transformer Engine) needs a GPU anyway
        import torch
        import torch._dynamo
        import torch.distributed

        torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))]).step()
        for name in [*imported_modules(script), *(["torch.utils.tensorboard"] if tensorboard else [])]:
            with contextlib.suppress(ImportError):  # an attribute, or something optional: the script will see for itself
                importlib.import_module(name)
