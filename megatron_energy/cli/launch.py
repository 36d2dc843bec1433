"""``python -m megatron_energy.run``: start a Megatron script with the energy scheduler around it."""

import argparse
import os
import runpy
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from megatron_energy.errors import UserError
from megatron_energy.session.options import EnergyOptions, split_arguments

USAGE = "python -m megatron_energy.run [--nproc N] SCRIPT.py ARGS... [--energy-policy POLICY ...]"
DESCRIPTION = """Run a Megatron training script, unchanged, under the energy scheduler. Under torchrun or srun: one process per
rank, as without it (torchrun ... -m megatron_energy.run SCRIPT.py ARGS...). With --nproc: all ranks of a host without GPUs,
as forks of this process."""


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
        raise UserError(f"script {script} not found: give the path of a Python file; usage: {USAGE}")
    if found.nproc is not None and found.nproc < 1:
        raise UserError(f"--nproc {found.nproc}: must be a whole number >= 1")
    if found.nnodes < 1 or not 0 <= found.node_rank < found.nnodes:
        raise UserError(f"--nnodes {found.nnodes} --node-rank {found.node_rank}: the rank must be in 0..nnodes-1")
    if found.nnodes > 1 and (found.nproc is None or not {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()):
        raise UserError("--nnodes needs --nproc, and MASTER_ADDR and MASTER_PORT in the environment of every host")
    if "RANK" in os.environ and found.nproc is not None:
        raise UserError("--nproc under torchrun would start ranks within a rank: leave it out there (--cpu gives CPU and gloo)")
    cpu = found.cpu or found.force_cpu or found.nproc is not None
    return Launch(
        options, script, found.arguments, found.nproc, found.nnodes, found.node_rank, cpu, found.force_cpu, found.logs
    )  # fmt: skip


def run_script(launch: Launch) -> None:
    """Install what was asked for and run the script in this process, as ``python SCRIPT.py ARGS...`` would."""
    from megatron_energy.megatron import training

    training.show_flags(launch.options, launch.arguments)
    if launch.options.active:
        from megatron_energy.megatron import runtime

        runtime.start(launch.options)
    sys.argv = [str(launch.script), *launch.arguments]
    runpy.run_path(str(launch.script), run_name="__main__")


def _fork(launch: Launch, nproc: int) -> int:
    from megatron_energy.megatron import fork, preload

    tensorboard = launch.options.active or launch.options.tensorboard_dir is not None
    preload.preload(launch.script, tensorboard)
    address, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "0"))
    if launch.nnodes == 1:
        address, port = "127.0.0.1", fork.free_port()
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    logs = launch.logs or (launch.options.run_dir / "logs" if launch.options.active else None)
    scratch = tempfile.mkdtemp(prefix="megatron-energy-") if logs is None else None
    try:
        ranks = fork.Ranks(nproc, nproc * launch.nnodes, nproc * launch.node_rank, address, port, logs or Path(str(scratch)))
        return fork.run(ranks, lambda: run_script(launch))
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)


def start(argv: Sequence[str]) -> int:
    """Run what ``argv`` asks for; the exit status.

    Raises:
        UserError: it cannot be run.
    """
    launch = parse(argv)
    sys.path.insert(0, str(launch.script.resolve().parent))
    if launch.options.active:
        from megatron_energy.megatron import runtime

        runtime.check(launch.options)  # once per process, before anything heavy is imported or any rank is forked
    if launch.cpu:
        from megatron_energy.megatron import cpu

        cpu.install(force=launch.force_cpu)
    if launch.nproc is not None:
        return _fork(launch, launch.nproc)
    run_script(launch)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point: prints a user's mistake as one line and returns 2."""
    try:
        return start(sys.argv[1:] if argv is None else argv)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
