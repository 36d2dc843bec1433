"""Options that describe a pipeline and its profile, shared by the planning commands."""

import argparse
import math
from collections.abc import Callable

from megatron_energy.errors import UserError
from megatron_energy.pipeline.schedule import P2P_MODES, P2pMode, Schedule

MOST = 1_000_000_000
"""No count on the command line means more than this."""


def whole(minimum: int) -> Callable[[str], int]:
    """An argparse type: a whole number from ``minimum`` to :data:`MOST`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if value < minimum:
            raise argparse.ArgumentTypeError(f"'{text}' is not a whole number >= {minimum}")
        if value > MOST:
            raise argparse.ArgumentTypeError(f"'{text}' is more than {MOST:,}")
        return value

    return parse


def real(minimum: float, maximum: float = math.inf) -> Callable[[str], float]:
    """An argparse type: a finite number from ``minimum`` to ``maximum``."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and minimum <= value <= maximum):
            limits = f">= {minimum:g}" if math.isinf(maximum) else f"from {minimum:g} to {maximum:g}"
            raise argparse.ArgumentTypeError(f"'{text}' is not a number {limits}")
        return value

    return parse


def add_profile_options(parser: argparse.ArgumentParser) -> None:
    """--profile and what belongs to it."""
    parser.add_argument("--profile", required=True, metavar="F", help="CSV with time and energy per stage, instruction and clock")
    parser.add_argument("--profile-scale", type=real(1e-9), default=1.0, metavar="X", help="multiply the profile's times and energies by X")
    parser.add_argument("--blocking-power", type=real(0), metavar="W", help="power of a GPU that waits in communication, in W")
    parser.add_argument("--gpu", metavar="NAME", help="take the blocking power from this GPU of the catalog, such as a100-sxm4-80gb")


def add_pipeline_options(parser: argparse.ArgumentParser, *, slowdown: bool = True) -> None:
    """The schedule and the parallel sizes; ``slowdown``: and how much of it is allowed."""
    parser.add_argument("--pipeline", type=whole(1), metavar="S", help="pipeline-parallel size")
    parser.add_argument("--chunks", type=whole(1), default=1, metavar="V", help="model chunks per stage (virtual pipeline size)")
    parser.add_argument("--microbatches", type=whole(1), metavar="M", help="microbatches per pipeline and iteration")
    parser.add_argument("--group-size", type=whole(1), metavar="G", help="microbatches that a chunk runs in a row (default: S)")
    parser.add_argument("--tensor", type=whole(1), default=1, metavar="N", help="tensor-parallel size: so many GPUs per stage")
    parser.add_argument("--data", type=whole(1), default=1, metavar="N", help="data-parallel size, likewise")
    parser.add_argument("--p2p", choices=P2P_MODES, help="communication mode (default: overlap with chunks, else ideal)")
    parser.add_argument(
        "--warmup-flush", action="store_true", help="Megatron's --overlap-p2p-communication-warmup-flush is on (overlap modes)"
    )
    if slowdown:
        parser.add_argument("--slowdown", type=real(0, 100), default=0.0, metavar="X", help="allowed slowdown: 0.01 is one percent")
    parser.add_argument(
        "--straggler",
        type=real(1, 10),
        default=1.0,
        metavar="X",
        help="how much longer another replica takes than this baseline",
    )


def schedule_of(args: argparse.Namespace) -> Schedule:
    """The schedule that the options describe.

    Raises:
        UserError: sizes that are missing or that Megatron would refuse.
    """
    missing = [f"--{name}" for name in ("pipeline", "microbatches") if getattr(args, name) is None]
    if missing:
        raise UserError(f"the following arguments are required: {', '.join(missing)} (or --graph FILE)")
    if args.group_size is not None and args.chunks == 1:
        raise UserError("--group-size needs --chunks of at least 2: without chunks there is nothing to group")
    p2p: P2pMode = args.p2p or ("overlap" if args.chunks > 1 else "ideal")
    return Schedule(args.pipeline, args.microbatches, args.chunks, args.group_size, p2p, args.warmup_flush)
