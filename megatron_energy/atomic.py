"""Files that appear as a whole: a reader finds what was there before, or all of the new content, never half of it."""

import os
from pathlib import Path


def write_whole(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file, text as UTF-8, with the permissions that the process gives to new files.

    Raises:
        OSError: it cannot be written. What was there before is still there, and nothing else is left behind.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
