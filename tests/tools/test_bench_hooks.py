"""The benchmark of the hooks measures what it says; its figures are for a person to judge."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from megatron_energy.records.steps import ClockRequest, Compute, Post, Wait


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    path = Path(__file__).parents[2] / "tools" / "bench_hooks.py"
    found = importlib.util.spec_from_file_location("bench_hooks", path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_wrapped_calls_do_record(bench: ModuleType) -> None:
    running = bench.Bench()
    recorded = {}
    for name, (wrapped, plain) in bench.rounds(running).items():
        running.begin()
        plain(5, [object()])
        assert running.recorder.program == []
        wrapped(5, [object()])
        recorded[name] = [step for step in running.recorder.take() if not isinstance(step, ClockRequest)]
    forward, backward = Compute("forward", 1, 5), Compute("backward", 1, 5)
    exchange = [Post("recv_prev", 0), Post("send_next", 0), Wait("recv_prev", 0), Wait("send_next", 0)]
    assert list(recorded.values()) == [[forward], [forward, backward], exchange, exchange]


def test_it_prints_one_json_object(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    bench.main(["--calls", "1000", "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert set(printed) == set(bench.rounds(bench.Bench()))
    assert all(set(cost) == {"median_us", "p99_us"} for cost in printed.values())


def test_in_a_training_every_point_is_marked(bench: ModuleType) -> None:
    running = bench.Bench(in_training=True)
    running.begin()
    wrapped, _ = bench.rounds(running)["forward + backward"]
    wrapped(5, [object()])
    edges = [point[0] + " " + point[3] for point, _ in running.marks.end()]
    assert edges == ["iteration begin", "forward begin", "forward end", "backward begin", "backward end", "iteration end"]


def test_an_iteration_is_the_sum_of_its_hooks(bench: ModuleType) -> None:
    names = ("forward", "forward + backward", "exchange, blocking", "exchange, overlapped, 2 waits")
    found = {name: {"median_us": us, "p99_us": 0.0} for name, us in zip(names, (10.0, 16.0, 99.0, 20.0), strict=True)}
    assert bench.per_iteration_ms(found) == pytest.approx((16 * 10 + 16 * 6 + 33 * 20) / 1e3)
