"""``megatron-energy drop RUN_DIR`` and ``megatron-energy resume RUN_DIR``: the live switch of a running job."""

import argparse
from pathlib import Path

HELP = {
    "drop": (
        "drop a running job to maximum clocks",
        "All GPUs of the job go to maximum clocks and stay there: in the next iteration on emulated GPUs, within a second or two on "
        "this host's",
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
            description=f"{description}. Writes RUN_DIR/control, which the job looks at after every iteration on emulated GPUs, and "
            "every second, on each node, on this host's. A job is resumed at Megatron's log interval.",
        )
        parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="the job's --energy-dir")
        parser.set_defaults(handler=handler, command=command)


def handler(args: argparse.Namespace) -> int:
    """Write the file and say what will happen."""
    from megatron_energy.session.control import write_control

    path = write_control(args.run_dir, args.command)
    drop = args.command == "drop"
    follows = "maximum clocks" if drop else "the job goes on from where it was dropped,"
    when = "within seconds" if drop else "from the next log interval on"
    print(f"{path}: {args.command}; {follows} from the next iteration on (emulated GPUs) or {when}")
    return 0
