"""The accounts of tools/iteration_costs.py, with a clock that the test moves, and what tools/bench_iteration.py makes of them, by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tools.loading import load_tool

costs = load_tool("iteration_costs")
bench = load_tool("bench_iteration")


class Thread:
    """CPU time of a thread, in ns."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns

    def works(self, duration_ns: int) -> None:
        self.now_ns += duration_ns


def test_time_is_whose_function_runs() -> None:
    thread = Thread()
    account = costs.Account(thread)
    stock = account.of(costs.STOCK, lambda: thread.works(100))

    def hook() -> None:
        thread.works(3)
        stock()
        thread.works(4)

    thread.works(50)
    account.of(costs.HOOKS, hook)()
    thread.works(50)
    account.switch("end")
    assert account.spent_ns == {costs.STOCK: 200, costs.HOOKS: 7}
    assert account.switches == {costs.STOCK: 3, costs.HOOKS: 2}


def test_an_error_gives_the_time_back() -> None:
    account = costs.Account(Thread())
    with pytest.raises(ZeroDivisionError):
        account.of(costs.HOOKS, lambda: 1 / 0)()
    assert account.switch("end") == costs.STOCK


def test_a_reading_costs_what_the_clock_adds() -> None:
    thread = Thread()

    def slow_clock() -> int:
        thread.works(10)
        return thread.now_ns

    assert costs.Account(slow_clock).reading_ns() == pytest.approx(10)


def snapshot(iteration: int) -> dict[str, Any]:
    """After so many iterations of 2 s: 5 ms of hooks with 100 readings, 40 ms of Megatron's; a sampler's 3 ms, 1 of them in the library."""
    return {
        "wall_s": 2.0 * iteration,
        "spent_ns": {"hooks": 5_000_000 * iteration, "stock": 40_000_000 * iteration},
        "switches": {"hooks": 100 * iteration, "stock": 100 * iteration},
        "threads_ns": {"gpu-sampler": 3_000_000 * iteration},
        "library_ns": {"gpu-sampler": 1_000_000 * iteration, "MainThread": 500_000 * iteration},
        "sent": {"gather": 160 * iteration},
    }


def test_costs_are_means_over_the_last_iterations_without_the_measurement() -> None:
    found = {"reading_ns": 2_000.0, "iterations": [snapshot(n) for n in range(1, 12)]}
    cost = bench.rank_cost(found, 10)
    assert cost.main_ms == pytest.approx({"hooks": 4.8, "stock": 39.8})
    assert cost.threads_ms == pytest.approx({"gpu-sampler": 2.0})
    assert (cost.library_ms, cost.iteration_s) == pytest.approx((1.0, 2.0))
    assert bench.sent([cost] * bench.RANKS) == pytest.approx(160)


def test_the_table_takes_off_what_measuring_costs() -> None:
    with_us = bench.RankCost({"hooks": 3.0, "stock": 40.0, "log interval": 0.5}, {"gpu-sampler": 0.25}, 1.0, {}, 1.0)
    without = bench.RankCost({"hooks": 1.0, "stock": 39.0}, {}, 0.0, {}, 1.0)
    shown = "\n".join(bench.table("nvml", [with_us] * bench.RANKS, [without] * bench.RANKS))
    assert "| hooks | 2.00 | 2.00 |" in shown
    assert "| **all, but for what happens once** | **2.75** | **2.75** |" in shown
    assert "| of this, on the main thread | 2.50 | 2.50 |" in shown


def test_bytes_are_per_iteration_and_gpu(tmp_path: Path) -> None:
    energy = tmp_path / "tensorboard" / "energy"
    energy.mkdir(parents=True)
    lines = [json.dumps({"iteration": n, "x": "y" * 100}) for n in (7, 8)]
    (energy / "iterations.jsonl").write_text("{}\n" + "\n".join(lines) + "\n")
    sizes = bench.written_bytes(tmp_path, "emulated", 2)
    assert sizes["RUN_DIR (iterations.jsonl)"] == pytest.approx((len(lines[0]) + 1) / bench.RANKS)


def test_it_trains_the_quick_starts_model() -> None:
    model = bench.small_model()
    assert model["layout"][:2] == ["--tensor-model-parallel-size", "2"]
    assert model["emulated"] == (
        ["--energy-emulated-gpu", "a100-sxm4-80gb", "--energy-emulated-model", "gpt3-13b", "--energy-emulated-micro-batch", "4"]
    )
