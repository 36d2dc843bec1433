"""The two commands that need privileges: ``run``, and ``restore`` where no clockd runs."""

import argparse
import sys

from megatron_energy.clockd.daemon import Daemon, Options, restore_without_daemon
from megatron_energy.clockd.rules import load


def options_from(args: argparse.Namespace) -> Options:
    """The options of :func:`megatron_energy.clockd.options.add_file_options`."""
    return Options(args.rules, args.socket, args.state_dir, args.audit_log)


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
