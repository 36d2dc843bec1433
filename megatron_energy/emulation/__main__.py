"""Run any Python program with emulated GPUs: ``python -m megatron_energy.emulation [options] PROGRAM ARGS...``.

Example: watch eight busy A100 with a monitor written for real ones::

    python -m megatron_energy.emulation --gpu a100-sxm4-80gb --count 8 --load 0.9 -m nvitop --once
"""

import argparse
import importlib.util
import os
import runpy
import shutil
import sys
import tempfile
from pathlib import Path

from megatron_energy.emulation import catalog
from megatron_energy.emulation.children import reach_child_processes
from megatron_energy.emulation.install import DIRECTORY_VARIABLE, VARIABLE, install_from_environment, parse_specification
from megatron_energy.emulation.nvml import EmulatedNvml
from megatron_energy.errors import UserError


def main(arguments: list[str] | None = None) -> int:
    """Run the program that ``arguments`` name; the program's own exit status is passed on by SystemExit."""
    options = _parser().parse_args(arguments)
    try:
        _run(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m megatron_energy.emulation",
        description="Run a Python program on a host with emulated NVIDIA GPUs. Every figure it reads from NVML is emulated.",
    )
    parser.add_argument("--gpu", help=f"GPU model (default: that of ${VARIABLE}, else a100-sxm4-80gb); known: {', '.join(catalog.known())}")
    parser.add_argument("--count", type=int, help="number of GPUs (default: 8)")
    parser.add_argument("--load", type=float, default=0.0, help="compute load of every GPU while the program runs, 0 to 1 (default: idle)")
    parser.add_argument("--memory-load", type=float, default=0.0, help="memory load, 0 to 1")
    parser.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module, as with python -m")
    parser.add_argument("program", metavar="PROGRAM")
    parser.add_argument("program_arguments", metavar="ARGS", nargs=argparse.REMAINDER)
    return parser


def _run(options: argparse.Namespace) -> None:
    _check(options)
    key, count = parse_specification(os.environ.get(VARIABLE) or "a100-sxm4-80gb")
    os.environ[VARIABLE] = f"{catalog.load(options.gpu or key).key}:{options.count if options.count is not None else count}"
    own_directory = None if os.environ.get(DIRECTORY_VARIABLE) else tempfile.mkdtemp(prefix="megatron-energy-emulation-")
    if own_directory:
        os.environ[DIRECTORY_VARIABLE] = own_directory
    reach_child_processes()
    install_from_environment()
    owner_pid = os.getpid()
    gpus = _library().gpus
    for gpu in gpus if options.load or options.memory_load else []:
        gpu.set_load(options.load, options.memory_load, owner_pid)
    try:
        _execute(options)
    finally:
        if os.getpid() == owner_pid:  # not in a forked child that ends here
            for gpu in gpus if own_directory is None else []:
                gpu.set_load(0.0)
            if own_directory:
                shutil.rmtree(own_directory, ignore_errors=True)


def _library() -> EmulatedNvml:
    import pynvml

    assert isinstance(pynvml.nvmlLib, EmulatedNvml)
    return pynvml.nvmlLib


def _check(options: argparse.Namespace) -> None:
    """Refuse what cannot work before anything is set up."""
    for name, share in (("--load", options.load), ("--memory-load", options.memory_load)):
        if not 0 <= share <= 1:
            raise UserError(f"{name} {share}: give a share from 0 to 1")
    if options.module:
        if importlib.util.find_spec(options.program.partition(".")[0]) is None:
            raise UserError(f"no module {options.program}: is it installed for {sys.executable}?")
    elif not Path(options.program).exists() or (Path(options.program).is_dir() and not (Path(options.program) / "__main__.py").exists()):
        raise UserError(f"no program {options.program}: give a Python file, or -m and a module")


def _execute(options: argparse.Namespace) -> None:
    sys.argv = [options.program, *options.program_arguments]
    if options.module:
        sys.path.insert(0, os.getcwd())
        _require_module(options.program)
        runpy.run_module(options.program, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(options.program).resolve().parent))
        runpy.run_path(options.program, run_name="__main__")


def _require_module(name: str) -> None:
    """Refuse a module that is not there or cannot be run; imports the packages above it, so only now."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise  # a package above it lacks something
        spec = None
    if spec is None:
        raise UserError(f"no module {name} that can be run: is it installed for {sys.executable}?")


if __name__ == "__main__":
    sys.exit(main())
