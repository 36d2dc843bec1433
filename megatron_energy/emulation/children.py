"""Emulated GPUs in Python processes that this one starts."""

import os
from pathlib import Path


def reach_child_processes() -> None:
    """Let Python processes that are started from now on emulate GPUs too (see ``startup/sitecustomize.py``)."""
    here = Path(__file__).resolve().parent
    path = os.environ.get("PYTHONPATH", "")
    wanted = [str(here / "startup"), str(here.parent.parent)]
    if path.split(os.pathsep)[:2] != wanted:
        os.environ["PYTHONPATH"] = os.pathsep.join(entry for entry in (*wanted, path) if entry)
