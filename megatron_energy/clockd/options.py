"""Options of the command line that say where clockd's files are. Loads no NVML."""

import argparse
from pathlib import Path

from megatron_energy.clockd import paths


def add_file_options(parser: argparse.ArgumentParser) -> None:
    """Options that say where clockd's files are."""
    parser.add_argument("--rules", type=Path, default=paths.RULES, help=f"who may do what (default: {paths.RULES})")
    parser.add_argument(
        "--socket",
        type=Path,
        default=paths.socket_path(),
        help=f"where clients connect (default: ${paths.SOCKET_VARIABLE}, else {paths.SOCKET})",
    )
    parser.add_argument(
        "--state-dir",
        type=Path,
        default=paths.STATE_DIRECTORY,
        help=f"what has to be restored is kept here (default: {paths.STATE_DIRECTORY})",
    )
    parser.add_argument("--audit-log", type=Path, default=paths.AUDIT_LOG, help=f"who did what (default: {paths.AUDIT_LOG})")
