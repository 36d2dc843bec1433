"""``python -m megatron_energy.run``: start a Megatron script with the energy scheduler around it."""

import argparse
import contextlib
import importlib.util
import os
import runpy
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from megatron_energy.errors import UserError
from megatron_energy.megatron.flags import add_flags, are_shown
from megatron_energy.megatron.folders import require_writable
from megatron_energy.megatron.stopping import Stopping
from megatron_energy.session.options import EnergyOptions, split_arguments

USAGE = "python -m megatron_energy.run [--nproc N] SCRIPT.py ARGS... [--energy-policy POLICY ...]"
DESCRIPTION = """Run a Megatron training script, unchanged, under the energy scheduler. Under torchrun or srun: one process per
rank, as without it (torchrun ... -m megatron_energy.run SCRIPT.py ARGS...). With --nproc: all ranks of a host without GPUs,
as forks of this process."""
NO_CUDA = (
    "torch finds no CUDA device here, which Megatron needs: add --nproc N to run N ranks on the CPU, or --cpu under torchrun or srun "
    "(both before the script)"
)


class _Parser(argparse.ArgumentParser):
    """Errors become one line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; usage: {USAGE}")


@dataclass(frozen=True)
class Launch:
    """What to run, and how."""

    options: EnergyOptions
    script: Path
    arguments: list[str]
    nproc: int | None
    nnodes: int
    node_rank: int
    cpu: bool
    force_cpu: bool
    logs: Path | None


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m megatron_energy.run", usage=USAGE, description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--nproc", type=int, metavar="N", help="fork N ranks on this host, on CPU and gloo (for hosts without GPUs)")
    parser.add_argument(
        "--nnodes", type=int, default=1, metavar="M", help="hosts that each run --nproc ranks; needs MASTER_ADDR and MASTER_PORT"
    )
    parser.add_argument("--node-rank", type=int, default=0, metavar="I", help="index of this host")
    parser.add_argument("--cpu", action="store_true", help="CPU and gloo without --nproc, as under torchrun")
    parser.add_argument("--force-cpu", action="store_true", help="CPU and gloo even though this host has CUDA")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="where the output of all but the last rank goes (default: RUN_DIR/logs)")
    add_flags(parser, EnergyOptions())  # for --help: split_arguments has taken them out
    parser.add_argument("script", metavar="SCRIPT.py")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS")
    return parser


def parse(argv: Sequence[str]) -> Launch:
    """The launch that ``argv`` asks for.

    Raises:
        UserError: anything that cannot be run, in one line.
    """
    options, rest = split_arguments(argv)
    if not rest:
        raise UserError(f"no script given; usage: {USAGE}")
    found = _parser().parse_args(rest)
    script = Path(found.script)
    if not script.is_file():
        raise UserError(f"script {found.script or 'with an empty name'} not found: give the path of a Python file; usage: {USAGE}")
    if found.nproc is not None and found.nproc < 1:
        raise UserError(f"--nproc {found.nproc}: must be a whole number >= 1")
    if found.nnodes < 1 or not 0 <= found.node_rank < found.nnodes:
        raise UserError(f"--nnodes {found.nnodes} --node-rank {found.node_rank}: the rank must be in 0..nnodes-1")
    if found.nnodes > 1 and (found.nproc is None or not {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()):
        raise UserError("--nnodes needs --nproc, and MASTER_ADDR and MASTER_PORT in the environment of every host")
    if found.nnodes > 1 and not (os.environ["MASTER_PORT"].isdecimal() and 0 < int(os.environ["MASTER_PORT"]) < 1 << 16):
        raise UserError(f"MASTER_PORT is '{os.environ['MASTER_PORT']}': give a TCP port, the same on every host")
    if "RANK" in os.environ and found.nproc is not None:
        raise UserError("--nproc under torchrun would start ranks within a rank: leave it out there (--cpu gives CPU and gloo)")
    cpu = found.cpu or found.force_cpu or found.nproc is not None
    return Launch(
        options, script, found.arguments, found.nproc, found.nnodes, found.node_rank, cpu, found.force_cpu, found.logs
    )  # fmt: skip


def run_script(launch: Launch) -> None:
    """Install what was asked for and run the script in this process, as ``python SCRIPT.py ARGS...`` would."""
    if are_shown(launch.options, launch.arguments):
        from megatron_energy.megatron import training

        training.show_flags(launch.options, launch.arguments)
    ended = _started(launch)
    sys.argv = [str(launch.script), *launch.arguments]
    try:
        runpy.run_path(str(launch.script), run_name="__main__")
    except SystemExit as stop:
        ended(not stop.code)
        raise
    except BaseException:  # an exception of the script, Ctrl-C: Python prints it
        ended(False)
        raise
    ended(True)


def _started(launch: Launch) -> Callable[[bool], None]:
    """Start the scheduler if it was asked for; returns what to call at the script's end, with whether that came without an error."""
    if not launch.options.active:
        return lambda well: None
    from megatron_energy.megatron import runtime

    energy = runtime.start(launch.options)

    def ended(well: bool) -> None:
        if well:
            energy.script_ended()
        if launch.nproc is None:  # forked ranks leave the interpreter in another way
            # Not at the interpreter's shutdown: Python 3.12 starts no thread there, and TensorBoard's writers are threads.
            energy.at_exit()

    return ended


def prepare(argv: Sequence[str]) -> Launch:
    """Check what ``argv`` asks for, before anything is started, and make this process ready for it.

    Raises:
        UserError: it cannot be run.
    """
    launch = parse(argv)
    if launch.nproc is not None:
        _require_python(launch.script)
    sys.path.insert(0, str(launch.script.resolve().parent))
    if launch.logs is not None:
        require_writable(launch.logs, "choose another --logs")
    if launch.options.tensorboard_dir is not None and (launch.options.active or launch.nproc is not None):
        require_writable(Path(launch.options.tensorboard_dir), "choose another --tensorboard-dir")
    if launch.options.active:
        from megatron_energy.megatron import runtime

        runtime.check(launch.options)  # once per process, before anything heavy is imported or any rank is forked
    if launch.cpu:
        _require_torch()
        from megatron_energy.megatron import cpu

        cpu.install(force=launch.force_cpu)
    elif launch.options.active:
        from megatron_energy.megatron import cpu

        _require_torch()
        if not cpu.has_cuda():
            raise UserError(NO_CUDA)
    return launch


def _require_python(script: Path) -> None:
    """Ranks would each show the same traceback."""
    try:
        compile(script.read_bytes(), str(script), "exec")
    except (SyntaxError, ValueError) as error:
        where = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else str(error)
        raise UserError(f"{script} is no Python file that this Python can run ({where})") from error
    except OSError as error:
        raise UserError(f"{script} cannot be read ({error.strerror})") from error


def _require_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise UserError("torch is not installed in this Python environment: install it (scripts/setup.sh does), or activate another")


def _fork(launch: Launch, nproc: int, stopping: Stopping) -> int:
    from megatron_energy.megatron import fork, preload

    tensorboard = launch.options.active or launch.options.tensorboard_dir is not None
    preload.preload(launch.script, tensorboard)
    stopping.check()
    if launch.nnodes == 1:
        address, port = "127.0.0.1", fork.free_port()
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    else:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    with _folder_of_logs(launch) as logs:
        ranks = fork.Ranks(nproc, nproc * launch.nnodes, nproc * launch.node_rank, address, port, logs)
        return fork.run(ranks, lambda: run_script(launch))


@contextlib.contextmanager
def _folder_of_logs(launch: Launch) -> Iterator[Path]:
    """Where the output of the ranks goes; kept nowhere unless somebody named a folder."""
    logs = launch.logs or (launch.options.run_dir / "logs" if launch.options.active else None)
    if logs is not None:
        yield logs
        return
    try:
        scratch = tempfile.mkdtemp(prefix="megatron-energy-")
    except OSError as error:
        raise UserError(f"no temporary folder for the output of the ranks ({error.strerror}): give --logs DIR") from error
    try:
        yield Path(scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run_here(launch: Launch) -> int:
    try:
        run_script(launch)
    except UserError as error:
        return _tell(error)
    except Exception:
        from megatron_energy.megatron import cpu

        if launch.cpu or "torch" not in sys.modules or cpu.has_cuda():
            raise
        sys.excepthook(*sys.exc_info())
        print(f"error: {NO_CUDA}", file=sys.stderr)
        return 1
    return 0


def _tell(error: UserError) -> int:
    print(f"error: {error}", file=sys.stderr)
    return 2


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point: prints a user's mistake as one line and returns 2; 130 after Ctrl-C before the script has started."""
    stopping = Stopping()
    stopping.install(instead_of=signal.default_int_handler)
    try:
        launch = prepare(sys.argv[1:] if argv is None else argv)
        if launch.nproc is not None:
            return _fork(launch, launch.nproc, stopping)
        stopping.check()
    except UserError as error:
        return _tell(error)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        stopping.remove()
    return _run_here(launch)
