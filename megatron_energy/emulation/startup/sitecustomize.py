"""Runs at the start of every Python process that has this directory on PYTHONPATH.

``python -m megatron_energy.emulation`` puts it there, so that processes which the program starts (torchrun's workers,
multiprocessing's spawned children) see the emulated GPUs as well. A ``sitecustomize`` that this one hides runs first.
"""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def run_hidden() -> None:
    """Run the ``sitecustomize`` further down the path, if there is one."""
    spec = PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if Path(entry or ".").resolve() != _HERE])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


def emulate() -> None:
    """Install the emulated GPUs that the environment asks for; end the process where that is not possible."""
    from megatron_energy.emulation.install import install_from_environment
    from megatron_energy.errors import UserError

    try:
        install_from_environment()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error


if __name__ == "sitecustomize":
    run_hidden()
    emulate()
