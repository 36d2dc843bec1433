"""``megatron-energy doctor``: what this host can measure and control, and why not.

Reports and changes nothing. Exit status 0 whatever it finds: a host without GPUs is a finding, not an error.
"""

import argparse
import json

from megatron_energy.errors import UserError


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "doctor",
        help="what this host can measure and control, and why not",
        description="Report what can be measured and controlled on this host, what a run would do about it, and why. Changes nothing.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="how long to watch the sensors of one GPU (default: 1; 0: do not watch them)"
    )
    parser.set_defaults(handler=handler)


def handler(args: argparse.Namespace) -> int:
    """Collect and print the findings. Raises UserError for a bad option or a bad ``MEGATRON_ENERGY_EMULATED``."""
    from megatron_energy.cli import doctor_report  # here, so that other subcommands do not load NVML

    if not 0 <= args.seconds <= 60:
        raise UserError(f"--seconds {args.seconds:g}: give 0 to 60")
    report = doctor_report.collect(args.seconds)
    if args.json:
        print(json.dumps(doctor_report.as_json(report)))
    else:
        doctor_report.print_text(report)
    return 0
