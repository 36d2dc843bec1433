"""The --energy-* options: taken out of the command line, checked, typed."""

import dataclasses
from pathlib import Path

import pytest

from megatron_energy.errors import UserError
from megatron_energy.session.options import FLAGS, EnergyOptions, split_arguments


def test_without_our_flags_nothing_is_asked_for_and_nothing_is_taken() -> None:
    argv = ["--lr", "1e-3", "--tensorboard-dir", "tb", "x"]
    options, rest = split_arguments(argv)
    assert options == EnergyOptions(tensorboard_dir="tb")
    assert options.policy is None and not options.active
    assert rest == argv


def test_flags_are_taken_wherever_they_stand_and_become_typed() -> None:
    options, rest = split_arguments(
        [
            "--energy-policy",
            "operations",
            "a.py",
            "--energy-slowdown=0.02",
            "-x",
            "--energy-max-switches",
            "4",
            "--energy-policy",
            "uniform",
        ]
    )
    assert rest == ["a.py", "-x"]
    assert (options.policy, options.slowdown, options.max_switches) == ("uniform", 0.02, 4)
    assert options.active
    assert options.given == ("max_switches", "policy", "slowdown")


def test_nothing_is_taken_after_two_dashes() -> None:
    options, rest = split_arguments(["--energy-policy", "off", "--", "--energy-policy", "segments"])
    assert options.policy == "off" and not options.active
    assert rest == ["--", "--energy-policy", "segments"]


def test_any_flag_asks_for_the_default_policy() -> None:
    assert split_arguments(["--energy-device", "emulated"])[0].policy == "segments"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--energy-policy", "fast"], "--energy-policy fast: choose one of off, measure"),
        (["--energy-slowdown", "-0.1"], "--energy-slowdown -0.1: must be a fraction >= 0"),
        (["--energy-slowdown", "nan"], "must be a fraction >= 0"),
        (["--energy-slowdown=inf"], "must be a fraction >= 0"),
        (["--energy-max-switches", "2.5"], "must be a whole number >= 0"),
        (["--energy-baseline-iterations", "0"], "must be a whole number >= 1"),
        (["--energy-polcy", "off"], "unknown option --energy-polcy: choose one of --energy-policy"),
        (["--energy-policy"], "--energy-policy needs a value"),
        (["--energy-plan", "p.json", "--energy-profile", "p.csv"], "a given plan needs no profile, so give one of them"),
        (["--energy-policy", "--lr"], "--energy-policy needs a value"),
    ],
)
def test_mistakes_are_told_in_one_line(argv: list[str], said: str) -> None:
    with pytest.raises(UserError) as raised:
        split_arguments(argv)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], "energy"),
        (["--tensorboard-dir", "tb"], "tb/energy"),
        (["--tensorboard-dir=tb"], "tb/energy"),
        (["--tensorboard-dir", "tb", "--energy-dir", "runs/1"], "runs/1"),
    ],
)
def test_run_directory(argv: list[str], expected: str) -> None:
    assert split_arguments(argv)[0].run_dir == Path(expected)


def test_every_flag_sets_a_field_and_knows_its_default() -> None:
    fields = {field.name for field in dataclasses.fields(EnergyOptions)}
    assert {flag.field for flag in FLAGS} == fields - {"tensorboard_dir", "log_energy", "given"}
    for flag in FLAGS:
        assert flag.default == getattr(EnergyOptions(), flag.field)
        if flag.default is not None:
            assert flag.parse(str(flag.default)) == flag.default
