"""What the launcher says about the rank whose failure ended a run."""

import shutil
import signal
import sys
from pathlib import Path

TAIL_LINES = 25
NO_SPACE_BYTES = 1 << 16


def report_failure(rank: int, code: int, log: Path | None) -> None:
    """Say on stderr which rank failed and how, with the last lines of its log.

    Args:
        rank: its rank in the job.
        code: its exit status; 128 + n where signal n ended it.
        log: file with its output; None: that was shown already.
    """
    lines = [] if log is None else log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
    if lines:
        print(f"megatron_energy.run: last lines of rank {rank} ({log}):", *lines, sep="\n", file=sys.stderr)
    print(f"megatron_energy.run: rank {rank} {_how(code)}", file=sys.stderr)  # the last line: it is what people see
    if log is not None and shutil.disk_usage(log.parent).free < NO_SPACE_BYTES:
        print(
            f"megatron_energy.run: no space is left in {log.parent}, so output was lost: choose another --logs",
            file=sys.stderr,
        )


def _how(code: int) -> str:
    if code <= 128:
        return f"failed with exit status {code}"
    hint = " (out of memory? use fewer ranks, fewer microbatches or a smaller model)" if code == 128 + signal.SIGKILL else ""
    return f"was ended by signal {code - 128}{hint}"
