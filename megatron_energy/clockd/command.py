"""The two commands that need privileges: ``run``, and ``restore`` where no clockd runs."""

import argparse
import sys
from collections.abc import Sequence

from megatron_energy.clockd.daemon import Daemon, Options, restore_without_daemon
from megatron_energy.clockd.hardware import all_hardware, unambiguous_numbers
from megatron_energy.clockd.rules import load
from megatron_energy.errors import UserError


def options_from(args: argparse.Namespace) -> Options:
    """The options of :func:`megatron_energy.clockd.options.add_file_options`."""
    return Options(args.rules, args.socket, args.state_dir, args.audit_log)


def uuids_of(names: Sequence[str] | None) -> tuple[str, ...] | None:
    """UUIDs of what ``--gpu`` names: UUIDs, or numbers as Slurm gives them to its Prolog (SLURM_JOB_GPUS), separated by commas.

    NVML is loaded only where there is a number.

    Raises UserError: no such number, or NVML's indices and the minor numbers differ here, so that a number may mean either.
    """
    if names is None:
        return None
    words = [word for name in names for word in name.split(",") if word]
    if not any(word.isdecimal() for word in words):
        return tuple(words)
    numbers = unambiguous_numbers(all_hardware({}).values())
    if numbers is None:
        raise UserError("indices and minor numbers of GPUs differ on this host: name GPUs by UUID (`megatron-energy doctor` shows them)")
    unknown = [word for word in words if word.isdecimal() and int(word) not in numbers]
    if unknown:
        raise UserError(f"no GPU {unknown[0]} on this host: run `megatron-energy doctor` for those there are")
    return tuple(numbers[int(word)] if word.isdecimal() else word for word in words)


def run(options: Options, check: bool = False) -> int:
    """Run clockd; with ``check`` only say whether the rules file can be used. Raises UserError."""
    if check:
        rules = load(options.rules)
        print(f"{options.rules}: {len(rules.rules)} rules, usable")
        return 0
    return Daemon(options).run()


def restore(options: Options, uuids: tuple[str, ...] | None) -> int:
    """Restore from the state directory. Exit status 1 where a GPU could not be restored. Raises UserError."""
    restored, unrestored = restore_without_daemon(options, uuids)
    return report(restored, unrestored)


def report(restored: list[str], unrestored: dict[str, str]) -> int:
    """Say what was restored and what was not; the exit status."""
    for uuid in restored:
        print(f"{uuid} restored")
    for uuid, reason in unrestored.items():
        print(f"{uuid} NOT restored: {reason}", file=sys.stderr)
    if not restored and not unrestored:
        print("nothing to restore")
    return 1 if unrestored else 0
