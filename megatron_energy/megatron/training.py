"""megatron.training, where a script uses it: our flags in its parser, a callback at its log interval."""

import argparse
import functools
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from megatron_energy.errors import UserError
from megatron_energy.megatron.flags import add_flags, are_shown
from megatron_energy.megatron.imports import apply_when_imported, replace
from megatron_energy.session.options import EnergyOptions

Provider = Callable[[argparse.ArgumentParser], argparse.ArgumentParser]

LOG_ENERGY_OFF = (
    "megatron-energy: --log-energy is switched off: Megatron divides the energy of the emulated GPUs by wall time, so its power "
    "would be wrong. See the energy/ scalars instead."
)


class _ForgivingHelp(argparse.HelpFormatter):
    """Shows a help text as it is where it is no format: megatron-core 0.19 has one with a bare percent sign, so --help fails there."""

    def _expand_help(self, action: argparse.Action) -> str:
        try:
            return super()._expand_help(action)
        except ValueError:
            return str(action.help)


def show_flags(options: EnergyOptions, arguments: Sequence[str]) -> None:
    """Have Megatron's parser show our flags in ``--help`` and keep their values (plain types) on its args.

    The launcher has taken the flags out of argv already, so that scripts with a parser of their own never see them; here
    they are only defaults. Nothing is changed without an ``--energy-*`` flag, except for ``--help``.
    """
    if not are_shown(options, arguments):
        return
    apply_when_imported("megatron.training.arguments", functools.partial(_wrap_parser, options))
    apply_when_imported("megatron.training.arguments", _wrap_validation)
    apply_when_imported("megatron.training.initialize", _rebind_parser)  # registered last: it needs the others


def _wrap_parser(options: EnergyOptions, arguments: Any) -> None:
    parse_args = arguments.parse_args
    signature = inspect.signature(parse_args)

    @functools.wraps(parse_args)
    def parse(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.arguments["extra_args_provider"] = _with_flags(options, bound.arguments.get("extra_args_provider"))
        parsed = parse_args(*bound.args, **bound.kwargs)
        if options.active and options.device == "emulated" and getattr(parsed, "log_energy", False):
            parsed.log_energy = False
            if os.environ.get("RANK", "0") == "0":
                print(LOG_ENERGY_OFF, file=sys.stderr)
        return parsed

    replace(arguments, parse_args=parse)


def _wrap_validation(arguments: Any) -> None:
    """Megatron asserts that sizes fit each other and the number of ranks: a user's mistake, to be told in one line by all ranks."""
    validate_args = arguments.validate_args

    @functools.wraps(validate_args)
    def validate(*args: Any, **kwargs: Any) -> Any:
        try:
            return validate_args(*args, **kwargs)
        except AssertionError as error:
            if not str(error):
                raise
            raise UserError(f"Megatron refuses these arguments: {error}") from error

    replace(arguments, validate_args=validate)


def _rebind_parser(initialize: Any) -> None:
    """Up to megatron-core 0.17, initialize holds these functions under names of its own."""
    from megatron.training import arguments

    for name in ("parse_args", "validate_args"):
        if hasattr(initialize, name):
            replace(initialize, **{name: getattr(arguments, name)})


def _with_flags(options: EnergyOptions, provider: Provider | None) -> Provider:
    """The script's own provider of arguments, then our group."""

    def provide(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        parser = provider(parser) if provider is not None else parser
        parser.formatter_class = _ForgivingHelp
        add_flags(parser, options)
        return parser

    return provide


class _LogCalls:
    """Calls ``on_log`` for megatron.training's loop.

    Attributes:
        told: last iteration that ``on_log`` was called for.
        last: last iteration of all.
    """

    def __init__(self, training: Any, on_log: Callable[[int, Any], None]) -> None:
        self.training = training
        self.on_log = on_log
        self.told = self.last = 0

    def at(self, iteration: int) -> None:
        """An iteration has been logged, or could have been."""
        self.last = iteration
        if iteration % self.training.get_args().log_interval == 0:
            self.tell()

    def tell(self) -> None:
        """Call ``on_log``, once per iteration."""
        if self.told != self.last:
            self.told = self.last
            self.on_log(self.last, self.training.get_tensorboard_writer())


def call_at_log_interval(training: Any, on_log: Callable[[int, Any], None]) -> None:
    """Call ``on_log(iteration, writer)`` after Megatron has logged, every --log-interval iterations, on every rank.

    The loop's last iteration counts too, whatever its number: what came after the last interval is not lost.
    ``writer`` is Megatron's TensorBoard writer, which exists on the last rank only: None elsewhere, and without
    --tensorboard-dir. Megatrons newer than 0.19 have callbacks (megatron.training.callbacks), which scripts pass to pretrain: their
    context names neither the iteration nor the writer, and on_log comes before the line is printed. So they give us nothing more.

    Args:
        training: module megatron.training.training.
        on_log: what to call.
    """
    training_log, train = training.training_log, training.train
    signature = inspect.signature(training_log)
    calls = _LogCalls(training, on_log)

    @functools.wraps(training_log)
    def log(*args: Any, **kwargs: Any) -> Any:
        result = training_log(*args, **kwargs)
        calls.at(int(signature.bind(*args, **kwargs).arguments["iteration"]))
        return result

    @functools.wraps(train)
    def loop(*args: Any, **kwargs: Any) -> Any:
        try:
            result = train(*args, **kwargs)
        except SystemExit as stop:
            if not stop.code:  # an agreed early end of all ranks: --exit-interval, --exit-duration, a signal
                calls.tell()
            raise  # a failure is this rank's own: nobody would come to a gathering
        calls.tell()
        return result

    replace(training, training_log=log, train=loop)
