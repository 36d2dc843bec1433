"""How a tool tells of a user's mistake: one line, and exit status 2."""

import sys
from collections.abc import Callable

from megatron_energy.errors import UserError


def told(run: Callable[[], int]) -> int:
    """The exit status of ``run``; 2 where it raised a UserError, which is printed."""
    try:
        return run()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
