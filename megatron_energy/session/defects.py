"""Errors that are ours: they end what we do, never the training."""

import contextlib
import traceback
from pathlib import Path


def noted(error: Exception, directory: Path) -> str:
    """Write where it happened into RUN_DIR/error.txt; returns what to tell the user. For the rank that writes RUN_DIR."""
    with contextlib.suppress(OSError):
        (directory / "error.txt").write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    return f"an error in megatron-energy ({type(error).__name__}: {error}; see error.txt in the run directory)"
