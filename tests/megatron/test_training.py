"""Flags in Megatron's parser and the callback at its log interval, on stand-ins for megatron.training's modules."""

import argparse
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from megatron_energy.errors import UserError
from megatron_energy.megatron import training
from megatron_energy.session.options import EnergyOptions, split_arguments


def parse_args(extra_args_provider: Any = None, ignore_unknown_args: bool = False) -> argparse.Namespace:
    """As megatron.training.arguments.parse_args."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--lr", type=float, help="a share (10%)")  # no format, as in megatron-core 0.19
    parser.add_argument("--log-energy", action="store_true")
    if extra_args_provider is not None:
        parser = extra_args_provider(parser)
    return parser.parse_args(sys.argv[1:])


def validate_args(args: Any, defaults: Any = None) -> Any:
    """As megatron.training.arguments.validate_args."""
    if args.world_size % args.pipeline:  # raised by hand: pytest adds to the messages of asserts
        raise AssertionError(f"world size ({args.world_size}) is not divisible by {args.pipeline}")
    if args.lr is None:
        raise AssertionError
    return args


def run_loop(iterations: int, status: int | None = None) -> str:
    """As megatron.training.training.train: logs every iteration; may end the process."""
    loop = sys.modules["megatron.training.training"]
    for iteration in range(1, iterations + 1):
        loop.training_log(0.5, 1e-3, iteration)
    if status is not None:
        sys.exit(status)
    return "done"


@pytest.fixture
def megatron(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The modules, as if imported already; <= 0.17 has a second name of the parser."""
    package, arguments, initialize, loop = (
        ModuleType(name)
        for name in ("megatron.training", "megatron.training.arguments", "megatron.training.initialize", "megatron.training.training")
    )
    for module in (package, arguments, initialize, loop):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    package.arguments = arguments  # type: ignore[attr-defined]
    arguments.parse_args = initialize.parse_args = parse_args  # type: ignore[attr-defined]
    arguments.validate_args = initialize.validate_args = validate_args  # type: ignore[attr-defined]
    loop.get_args = lambda: SimpleNamespace(log_interval=5)  # type: ignore[attr-defined]
    loop.get_tensorboard_writer = lambda: "writer"  # type: ignore[attr-defined]
    loop.train = run_loop  # type: ignore[attr-defined]
    loop.training_log = lambda loss, learning_rate, iteration, extra=None: ("report", loss)  # type: ignore[attr-defined]
    yield SimpleNamespace(arguments=arguments, initialize=initialize, loop=loop)


def parse(megatron: SimpleNamespace, argv: list[str], monkeypatch: pytest.MonkeyPatch, provider: Any = None) -> argparse.Namespace:
    options, rest = split_arguments(argv)
    training.show_flags(options, rest)
    monkeypatch.setattr(sys, "argv", ["script.py", *rest])
    parsed: argparse.Namespace = megatron.initialize.parse_args(provider)
    assert megatron.arguments.parse_args is megatron.initialize.parse_args
    return parsed


def test_our_values_are_plain_attributes_beside_the_script_s_own(megatron: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def provider(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        parser.add_argument("--own", default="script")
        return parser

    argv = ["--lr", "0.1", "--energy-policy", "dry-run", "--energy-slowdown", "0.05"]
    parsed = parse(megatron, argv, monkeypatch, provider)
    assert (parsed.lr, parsed.own, parsed.energy_policy, parsed.energy_slowdown, parsed.energy_max_switches) == (
        0.1,
        "script",
        "dry-run",
        0.05,
        8,
    )
    ours = {name: value for name, value in vars(parsed).items() if name.startswith("energy_")}
    assert {type(value) for value in ours.values()} <= {str, int, float, type(None)}, "checkpoints store args"


def test_without_our_flags_the_parser_is_not_touched(megatron: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = parse(megatron, ["--lr", "0.1"], monkeypatch)
    assert megatron.arguments.parse_args is parse_args
    assert not [name for name in vars(parsed) if name.startswith("energy_")]


def test_help_shows_them(megatron: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(megatron, ["--help"], monkeypatch)
    shown = capsys.readouterr().out
    assert "--energy-policy {off,measure,dry-run,segments,operations,uniform,maximum}" in shown
    assert "--energy-sweep-clocks" in shown


@pytest.mark.parametrize(("device", "kept"), [("emulated", False), ("auto", True)])
def test_power_over_wall_time_is_left_out_on_emulated_gpus(
    megatron: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], device: str, kept: bool
) -> None:
    parsed = parse(megatron, ["--log-energy", "--energy-device", device], monkeypatch)
    assert parsed.log_energy is kept
    assert ("--log-energy is switched off" in capsys.readouterr().err) is not kept


def test_an_explicit_off_changes_nothing_but_the_flags(megatron: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = parse(megatron, ["--log-energy", "--energy-policy", "off", "--energy-device", "emulated"], monkeypatch)
    assert parsed.energy_policy == "off" and parsed.log_energy


def test_the_callback_comes_after_megatron_s_log_at_its_interval(megatron: SimpleNamespace) -> None:
    calls: list[tuple[int, Any]] = []
    training.call_at_log_interval(megatron.loop, lambda iteration, writer: calls.append((iteration, writer)))
    for iteration in range(1, 11):
        assert megatron.loop.training_log(0.5, 1e-3, iteration, extra=1) == ("report", 0.5)
    assert calls == [(5, "writer"), (10, "writer")]
    megatron.loop.training_log(0.5, 1e-3, iteration=15)
    assert calls[-1] == (15, "writer")


def test_the_loop_s_last_iteration_is_told_too(megatron: SimpleNamespace) -> None:
    calls: list[int] = []
    training.call_at_log_interval(megatron.loop, lambda iteration, writer: calls.append(iteration))
    assert megatron.loop.train(12) == "done"
    assert calls == [5, 10, 12]
    megatron.loop.train(10)
    assert calls == [5, 10, 12, 5, 10], "told once where it is on the interval"
    with pytest.raises(SystemExit):
        megatron.loop.train(3, status=0)
    assert calls[5:] == [3]


def test_options_without_a_policy_attach_nothing() -> None:
    from megatron_energy.megatron.attach import install
    from tests.megatron.collector import Collector

    assert install(EnergyOptions(), Collector()) is None
    assert install(EnergyOptions(policy="off"), Collector()) is None


def test_sizes_that_megatron_refuses_are_a_users_mistake(megatron: SimpleNamespace) -> None:
    training.show_flags(EnergyOptions(policy="segments"), [])
    fits = SimpleNamespace(world_size=4, pipeline=2, lr=0.1)
    assert megatron.arguments.validate_args(fits, {}) is fits
    for module in (megatron.arguments, megatron.initialize):
        with pytest.raises(UserError, match=r"^Megatron refuses these arguments: world size \(4\) is not divisible by 3$"):
            module.validate_args(SimpleNamespace(world_size=4, pipeline=3, lr=0.1))
    with pytest.raises(AssertionError):  # without a message the traceback says more
        megatron.arguments.validate_args(SimpleNamespace(world_size=4, pipeline=2, lr=None))
