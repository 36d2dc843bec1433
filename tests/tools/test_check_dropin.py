"""tools/check_dropin.py: what it calls equal, and, in the long test run, its real starts on 4 ranks."""

import os
from dataclasses import replace

import pytest

from tests.megatron.launching import needs_megatron
from tests.tools.loading import load_tool

tool = load_tool("check_dropin")
FIGURES = [("1", "5.5", "1.2"), ("2", "5.4", "1.1")]
FINE = tool.Run(0, 1.0, FIGURES, [["a", "b"], ["c"]], tool.LAUNCHER)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("[2026-11-30 09:14:05.790771] iteration 1/ 4 |", "[2025-01-02 03:04:05.6] iteration 1/ 4 |", True),
        ("elapsed time per iteration (ms): 1449.5 | lm loss: 5.5", "elapsed time per iteration (ms): 7.1 | lm loss: 5.5", True),
        ("elapsed time per iteration (ms): 7.1 | lm loss: 5.5", "elapsed time per iteration (ms): 7.1 | lm loss: 5.6", False),
        ("store at localhost:29500", "store at localhost:31007", True),
        ("model-setup: (12.1, 13.9)", "model-setup: (2.0, 3.4)", True),
        ("params=fp32, timers=<Timers object at 0x7f4ae0a753d0>", "params=fp32, timers=<Timers object at 0x7f4ae0a3bdd0>", True),
        ("number of parameters: 12", "number of parameters: 13", False),
    ],
)
def test_what_differs_between_any_two_runs(one: str, other: str, equal: bool) -> None:
    assert (tool.plain(one) == tool.plain(other)) is equal


def test_equal_runs() -> None:
    with_energy = replace(FINE, modules=["megatron_energy.megatron.hooks"], log=[["more"]])
    runs = {"bare": FINE, "torchrun": FINE, "torchrun-energy": with_energy, "fork": replace(FINE, log=[["c"]])}
    assert tool.differences(runs, iterations=2) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"status": 1}, "torchrun: exit status 1"),
        ({"figures": FIGURES[:1]}, "torchrun: 1 iterations logged instead of 2"),
        ({"figures": [*FIGURES[:1], ("2", "5.4", "1.0")]}, "torchrun: losses or gradient norms differ from bare"),
        ({"log": [["b", "a"], ["c"]]}, "torchrun: the log of rank 0 differs from bare: "),
        (
            {"modules": [*tool.LAUNCHER, "megatron_energy.megatron.hooks"]},
            "torchrun: imported without flags: megatron_energy.megatron.hooks",
        ),
        ({"modules": [*tool.LAUNCHER, "megatron_energy.megatron.cpu.gloo"]}, None),
    ],
)
def test_differences(changed: dict[str, object], said: str | None) -> None:
    found = tool.differences({"bare": FINE, "torchrun": replace(FINE, **changed)}, iterations=2)
    assert (found == []) if said is None else any(line.startswith(said) for line in found)


@needs_megatron
@pytest.mark.usefixtures("megatron_training")
@pytest.mark.skipif(not os.environ.get("CI"), reason="minutes of imports: scripts/test.sh with CI=1")
@pytest.mark.parametrize("arguments", [["--ranks", "4"], ["--ranks", "16", "--starts", "bare,torchrun,fork,fork-energy"]], ids=["4", "16"])
def test_the_starts_are_equal(arguments: list[str]) -> None:
    assert tool.main([*arguments, "--iterations", "2"]) == 0
