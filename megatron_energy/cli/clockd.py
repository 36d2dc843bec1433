"""``megatron-energy clockd run|status|release|restore``: the clock daemon, and talking to it."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from megatron_energy.errors import UserError


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    from megatron_energy.clockd.paths import SOCKET_VARIABLE

    parser = subparsers.add_parser(
        "clockd",
        help="the privileged clock daemon: run it, ask it, give GPUs back",
        description="The clock daemon lends GPUs to training jobs and always takes them back. Operators: see docs/clockd.md.",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    run = actions.add_parser("run", help="run the daemon (root)")
    run.add_argument("--check", action="store_true", help="only say whether the rules file can be used")
    status = actions.add_parser("status", help="the GPUs that you may use, and who has them")
    status.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    release = actions.add_parser("release", help="end leases of your user, those of other processes too (root: of anyone)")
    restore = actions.add_parser("restore", help="end leases and restore GPUs (root); works without a running daemon as well")
    for action in (release, restore):
        action.add_argument("--gpu", action="append", metavar="GPUS", help="UUIDs or Slurm's numbers, with commas (default: all there are)")
    _add_file_options(run)
    _add_file_options(restore)
    for action in (status, release):
        action.add_argument("--socket", type=Path, help=f"where clockd listens (default: ${SOCKET_VARIABLE}, else the usual place)")
    run.set_defaults(handler=_run)
    status.set_defaults(handler=_status)
    release.set_defaults(handler=_release)
    restore.set_defaults(handler=_restore)


def _add_file_options(parser: argparse.ArgumentParser) -> None:
    from megatron_energy.clockd.options import add_file_options

    add_file_options(parser)


def _run(args: argparse.Namespace) -> int:
    from megatron_energy.clockd import command

    _emulate_where_asked()
    return command.run(command.options_from(args), args.check)


def _emulate_where_asked() -> None:
    """``MEGATRON_ENERGY_EMULATED``, for a trial. The daemon's own module, which the unit runs, knows no emulation."""
    from megatron_energy.emulation.install import install_from_environment

    install_from_environment()


def _restore(args: argparse.Namespace) -> int:
    from megatron_energy.clockd import command
    from megatron_energy.clockd.client import ClockdClient
    from megatron_energy.clockd.errors import ClockdError, Unavailable

    _emulate_where_asked()
    uuids = command.uuids_of(args.gpu)
    try:
        with ClockdClient.connect(args.socket) as clockd:
            answer = clockd.restore(uuids)
            return command.report(answer["restored"], answer["unrestored"])
    except Unavailable as error:
        print(f"{error}; restoring from {args.state_dir} instead", file=sys.stderr)
        return command.restore(command.options_from(args), uuids)
    except ClockdError as error:
        raise UserError(str(error)) from error


def _release(args: argparse.Namespace) -> int:
    from megatron_energy.clockd import command

    if args.gpu:
        _emulate_where_asked()
    answer = _ask(args.socket, "evict", gpus=command.uuids_of(args.gpu))
    for uuid in answer["released"]:
        print(f"{uuid} released")
    if not answer["released"]:
        print("your user holds no GPU")
    return command.report([], answer["unrestored"]) if answer["unrestored"] else 0


def _status(args: argparse.Namespace) -> int:
    answer = {**_ask(args.socket, "hello"), **_ask(args.socket, "status")}
    if args.json:
        print(json.dumps(answer))
        return 0
    emulated = ", emulated GPUs" if answer["emulated"] else ""
    print(f"clockd {answer['clockd']}{emulated}; you are user {answer['uid']}{' (operator)' if answer['operator'] else ''}")
    for complaint in filter(None, (answer["rules"], answer["audit"])):
        print(complaint)
    for gpu in answer["gpus"]:
        print(f"{gpu['uuid']}  {_holder(gpu)}{_trouble(gpu)}")
    if not answer["gpus"]:
        print("no rule gives you a GPU: ask your operator")
    return 0


def _ask(socket: Path | None, operation: str, **arguments: object) -> dict[str, Any]:
    from megatron_energy.clockd.client import ClockdClient
    from megatron_energy.clockd.errors import ClockdError

    try:
        with ClockdClient.connect(socket) as clockd:
            return clockd.hello if operation == "hello" else clockd.request(operation, **arguments)
    except ClockdError as error:
        raise UserError(str(error)) from error


def _holder(gpu: dict[str, Any]) -> str:
    if not gpu["leased"]:
        return "free" if gpu["rule"] is not None else "free (no rule gives it to you)"
    lease = gpu.get("lease")
    if lease is None:
        return "leased by another user"
    clock = "clocks as found" if lease["max_mhz"] is None else f"at most {lease['max_mhz']} MHz"
    power = "" if lease["power_limit_w"] is None else f", {lease['power_limit_w']:g} W (found: {lease['saved_power_limit_w']:g} W)"
    return f"process {lease['pid']} of user {lease['uid']}, {clock}{power}, {lease['expires_in_s']:.0f} s left"


def _trouble(gpu: dict[str, Any]) -> str:
    trouble = gpu.get("unrestored")
    if trouble is None:
        return ""
    return f"; NOT restored after {trouble['attempts']} attempts, next in {trouble['next_attempt_in_s']:.0f} s: {trouble['reason']}"
