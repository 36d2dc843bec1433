"""``megatron-energy drop RUN_DIR`` and ``megatron-energy resume RUN_DIR``: the live switch of a running job."""

import argparse
from pathlib import Path

HELP = {
    "drop": (
        "drop a running job to maximum clocks",
        "All GPUs of the job go to maximum clocks in the same iteration and stay there: the next one on emulated GPUs, "
        "after Megatron's next log interval on this host's",
    ),
    "resume": ("bring a dropped job back", "The job goes on where it was dropped: with its plan, or on the way to one"),
}


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add both commands."""
    for command, (help, description) in HELP.items():
        parser = subparsers.add_parser(
            command,
            help=help,
            allow_abbrev=False,
            description=f"{description}. Writes RUN_DIR/control, which the job looks at after every iteration on emulated GPUs, and at "
            "every log interval on this host's.",
        )
        parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="the job's --energy-dir")
        parser.set_defaults(handler=handler, command=command)


def handler(args: argparse.Namespace) -> int:
    """Write the file and say what will happen."""
    from megatron_energy.session.control import write_control

    path = write_control(args.run_dir, args.command)
    follows = "maximum clocks" if args.command == "drop" else "the job goes on from where it was dropped,"
    print(f"{path}: {args.command}; {follows} from the next iteration on (emulated GPUs) or the next log interval on")
    return 0
