"""``megatron-energy COMMAND``: parses the command line and runs one command.

A command is a module of this package with ``add_parser(subparsers)``, which sets the default ``handler``: a function from the
parsed arguments to the exit status. A user's mistake ends in one line on stderr and status 2.
"""

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from megatron_energy import __version__
from megatron_energy.errors import UserError

COMMANDS = ("doctor", "plan", "frontier", "replay", "control", "patch", "clockd")
"""Modules of this package, in the order of the help text."""


class _Parser(argparse.ArgumentParser):
    """Errors become one line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = _Parser(prog="megatron-energy", description="Energy scheduler for Megatron-LM training.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"megatron-energy {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in COMMANDS:
        importlib.import_module(f"megatron_energy.cli.{name}").add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status: 2 after a mistake of the user's, 130 after Ctrl-C."""
    try:
        args = build_parser().parse_args(argv)
        return int(args.handler(args))
    except UserError as error:
        print(f"megatron-energy: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # what a shell reports for SIGPIPE
