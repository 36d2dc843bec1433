"""Folders that a run writes into, tried before it starts."""

import tempfile
from pathlib import Path

from megatron_energy.errors import UserError

_BYTES = 4096  # a full disk takes an empty file


def require_writable(folder: Path, advice: str) -> None:
    """Make the folder and write into it, leaving nothing.

    Args:
        folder: the folder.
        advice: what to do if that fails; completes the message.

    Raises:
        UserError: it cannot be written, or has no space left.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_BYTES))
    except OSError as error:
        raise UserError(f"cannot write to {folder} ({error.strerror}): {advice}") from error
