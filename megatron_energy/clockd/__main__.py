"""``python -I -m megatron_energy.clockd run``: clockd alone, with no module of the product that it does not need."""

import argparse
import sys

from megatron_energy.clockd.command import options_from, restore, run
from megatron_energy.clockd.options import add_file_options
from megatron_energy.errors import UserError


def main(arguments: list[str] | None = None) -> int:
    """Command line; the exit status is 2 for an error that the operator can mend."""
    parser = argparse.ArgumentParser(prog="python -m megatron_energy.clockd", description="The clock daemon. See docs/clockd.md.")
    parser.add_argument("command", choices=["run", "restore"], help="restore: give back what a killed clockd left, where none runs")
    parser.add_argument("--check", action="store_true", help="only say whether the rules file can be used")
    add_file_options(parser)
    args = parser.parse_args(arguments)
    try:
        return run(options_from(args), args.check) if args.command == "run" else restore(options_from(args), None)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
