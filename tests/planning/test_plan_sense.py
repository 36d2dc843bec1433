"""Plan files that someone has edited: what they cannot mean is refused, by the name of the field."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megatron_energy.errors import UserError
from megatron_energy.planning.plan_file import load_plan

GOOD: dict[str, Any] = {
    "schema": "megatron-energy/plan", "version": 1,
    "layout": {"tensor": 1, "context": 1, "expert": 1, "data": 1, "pipeline": 2},
    "schedule": {"stages": 2, "microbatches": 2, "p2p": "ideal"},
    "policy": "segments", "max_switches": 2, "lead_s": 0.3,
    "expected": {
        "iteration_s": 9.0, "energy_j": 900.0, "baseline_iteration_s": 9.0, "baseline_energy_j": 1000.0, "deadline_s": 9.0,
        "saved_percent": 10.0, "slowdown_percent": 0.0, "bound_saved_percent": 11.0,
    },
    "units": [
        {
            "stage": 0,
            "segments": [
                {"kind": "forward", "chunk": 0, "microbatch": 1, "clock_mhz": 1000},
                {"kind": "backward", "chunk": 0, "microbatch": 1, "clock_mhz": 1400},
            ],
            "requests": [
                {"kind": "forward", "chunk": 0, "microbatch": 1, "edge": "begin", "clock_mhz": 1000},
                {"kind": "backward", "chunk": 0, "microbatch": 0, "edge": "begin", "clock_mhz": 1400, "delay_s": 2.7, "ahead": 1},
            ],
        },
        {"stage": 1, "segments": [{"kind": "forward", "chunk": 0, "microbatch": 0, "clock_mhz": 1400}]},
    ],
}  # fmt: skip
"""Stage 0 runs F0 F1 B0 B1: down with F1, up for B1, asked for in B0 before it."""

REQUEST = ("units", 0, "requests", 1)


def loaded(folder: Path, change: Callable[[Any], None]) -> str:
    """What is said about the changed file; empty: nothing."""
    body = copy.deepcopy(GOOD)
    change(body)
    path = folder / "plan.json"
    path.write_text(json.dumps(body), encoding="utf-8")
    try:
        load_plan(path)
    except UserError as error:
        assert str(error).startswith(f"{path} is damaged (") and "\n" not in str(error)
        return str(error)
    return ""


def put(value: Any, *place: str | int) -> Callable[[Any], None]:
    def change(body: Any) -> None:
        for key in place[:-1]:
            body = body[key]
        body[place[-1]] = value

    return change


def test_the_plan_itself_is_accepted(tmp_path: Path) -> None:
    assert loaded(tmp_path, lambda body: None) == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (put("middle", *REQUEST, "edge"), "units[0].requests[1].edge: 'middle' is not one of begin, end"),
        (put(1e6, *REQUEST, "delay_s"), "units[0].requests[1].delay_s: 1e+06 is not within an iteration of 9 s"),
        (put(-0.1, *REQUEST, "delay_s"), "units[0].requests[1].delay_s: -0.1 is not within an iteration of 9 s"),
        (put(float("nan"), *REQUEST, "delay_s"), "units[0].requests[1].delay_s: nan is not a finite number"),
        (put(float("inf"), "lead_s"), "lead_s: inf is not a finite number"),
        (put("fastest", "policy"), "policy: 'fastest' is not one of segments, operations"),
        (put(-1, "max_switches"), "max_switches: -1 is below 0"),
        (put(0.9, "straggler"), "straggler: 0.9 is below 1"),
        (put(1, "max_switches"), "units[0].segments: 2 switches, but max_switches is 1"),
        (put(-9.0, "expected", "iteration_s"), "expected.iteration_s: -9.0 is below 0"),
        (put(50.0, "expected", "saved_percent"), "expected.saved_percent: 50, but the figures beside it make 10"),
        (put(500.0, "expected", "energy_j"), "expected.saved_percent: 10, but the figures beside it make 50"),
        (put(8.0, "expected", "iteration_s"), "expected.slowdown_percent: 0, but the figures beside it make -11.1111"),
        (put(12.0, "expected", "deadline_s"), "expected.deadline_s: 12 is later than straggler x (1 + slowdown) x baseline"),
        (put(9.0, "expected", "bound_saved_percent"), "expected.bound_saved_percent: 9, but the plan saves 10"),
        (put(9.0, "expected", "limit_saved_percent"), "expected.limit_saved_percent: 9, but the plan saves 10"),
        (put(2, *REQUEST, "microbatch"), "units[0].requests[1]: its schedule has no backward 2 of chunk 0"),
        (put("recompute", *REQUEST, "kind"), "units[0].requests[1]: its schedule has no recompute 0 of chunk 0"),
        (put("optimizer", "units", 0, "segments", 0, "kind"), "units[0].segments[0]: its schedule has no optimizer 1 of chunk 0"),
        (put(0, *REQUEST, "ahead"), "units[0].requests: they do not bring the segments about"),
        (put("end", *REQUEST, "edge"), "units[0].requests: they do not bring the segments about"),
        (put(1300, *REQUEST, "clock_mhz"), "units[0].requests: they do not bring the segments about"),
        (put(GOOD["units"][0]["segments"][::-1], "units", 0, "segments"), "units[0].segments: not in the order in which their operations"),
        (put(GOOD["units"][0]["requests"][:1], "units", 0, "requests"), "units[0].requests: they do not bring the segments about"),
        (put(GOOD["units"][0]["requests"], "units", 1, "requests"), "units[1].requests: they do not bring the segments about"),
    ],
)
def test_what_cannot_be_meant_is_named(change: Callable[[Any], None], said: str, tmp_path: Path) -> None:
    assert said in loaded(tmp_path, change)


def test_a_straggler_makes_the_deadline_and_the_slowdown(tmp_path: Path) -> None:
    def slow(body: Any) -> None:
        body["straggler"] = 1.5
        body["expected"].update(iteration_s=13.0, deadline_s=13.5)

    assert loaded(tmp_path, slow) == ""


def test_a_raise_over_the_end_of_the_iteration_counts_the_steps_that_the_plan_knew(tmp_path: Path) -> None:
    """Up for F0, asked for in the optimizer (1 ahead), or in B1 of a plan that knows neither grad-sync nor optimizer (1 ahead as well)."""

    def wrapped(kind: str, microbatch: int, ahead: int) -> Callable[[Any], None]:
        def change(body: Any) -> None:
            unit = body["units"][0]
            unit["segments"][1].update(kind="forward", microbatch=0)
            unit["segments"].reverse()
            chunk = -1 if kind == "optimizer" else 0
            unit["requests"][1].update(kind=kind, chunk=chunk, microbatch=microbatch, ahead=ahead)

        return change

    assert loaded(tmp_path, wrapped("optimizer", -1, 1)) == ""
    assert loaded(tmp_path, wrapped("backward", 1, 1)) == ""
    assert loaded(tmp_path, wrapped("backward", 1, 3)) == ""  # over grad-sync and optimizer
    assert "do not bring" in loaded(tmp_path, wrapped("optimizer", -1, 2))
