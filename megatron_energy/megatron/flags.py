"""The ``--energy-*`` flags in a parser's help, grouped."""

import argparse
from collections.abc import Sequence

from megatron_energy.session.options import FLAGS, EnergyOptions, Flag


def add_flags(parser: argparse.ArgumentParser, options: EnergyOptions) -> None:
    """Add every flag to ``parser``, with the values of ``options`` as its defaults."""
    ours = parser.add_argument_group("megatron-energy", "before or after the script; docs/run.md says more")
    emulation = parser.add_argument_group("megatron-energy, emulated GPUs", "docs/emulation.md says more")
    for flag in FLAGS:
        (emulation if flag.name.startswith("emulated-") else ours).add_argument(
            flag.option,
            dest="energy_" + flag.field,
            type=flag.parse,
            default=getattr(options, flag.field),
            metavar="{" + ",".join(flag.choices) + "}" if flag.choices else flag.name.upper(),
            help=_help(flag),
        )


def are_shown(options: EnergyOptions, arguments: Sequence[str]) -> bool:
    """Whether Megatron's parser is to know our flags: one was given, or the script's ``arguments`` ask for help."""
    return options.policy is not None or bool({"-h", "--help"} & set(arguments))


def _help(flag: Flag) -> str:
    return f"{flag.help} (default: {flag.default})" if flag.default is not None else flag.help
