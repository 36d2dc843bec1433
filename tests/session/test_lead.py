"""Switching latency measured by all ranks together; nobody is left waiting."""

from collections.abc import Callable
from pathlib import Path

import pytest

from megatron_energy.gpus.counts import Quantiles
from megatron_energy.gpus.errors import GpuError
from megatron_energy.gpus.latency import LatencyProbe, SwitchingLatency
from megatron_energy.session.lead import ROUNDS_TOGETHER, measure_switching
from megatron_energy.session.node import fullest_node, neighbours, open_memory
from tests.emulated_gpus import FakeClock
from tests.gpus.fake_actuator import FakeActuator
from tests.gpus.fake_gpu import FakeGpu
from tests.session.facts import job
from tests.session.threads import Meeting, ThreadExchange, on_all_ranks

RANKS = 3
CALL_S = (0.004, 0.006, 0.005)


def probe(rank: int, fails: bool = False) -> Callable[[], LatencyProbe]:
    clock = FakeClock()
    actuator = FakeActuator(clock, clock.sleep)
    actuator.call_s = CALL_S[rank]
    if fails:
        actuator.failures = [GpuError("nvmlDeviceSetGpuLockedClocks: Unknown Error")]
    return lambda: LatencyProbe(actuator, FakeGpu(), (1410, 1200), None, clock, clock.sleep)


def measured(fails: int | None = None) -> list[SwitchingLatency | str]:
    meeting = Meeting(RANKS)
    exchanges = [ThreadExchange(meeting, rank) for rank in range(RANKS)]
    return on_all_ranks(
        [lambda r=r: measure_switching(probe(r, r == fails), exchanges[r], r, RANKS) for r in range(RANKS)]  # type: ignore[misc]
    )


def test_every_rank_measures_alone_and_with_the_others() -> None:
    for rank, found in enumerate(measured()):
        assert isinstance(found, SwitchingLatency)
        assert found.gpus_on_node == RANKS
        assert found.call_s.median_s == pytest.approx(CALL_S[rank])
        assert isinstance(found.together_s, Quantiles) and found.together_s.samples == ROUNDS_TOGETHER


def test_a_gpu_that_cannot_be_measured_does_not_hold_up_the_others() -> None:
    found = measured(fails=1)
    assert found[1] == "nvmlDeviceSetGpuLockedClocks: Unknown Error"
    assert isinstance(found[0], SwitchingLatency) and isinstance(found[2], SwitchingLatency)


def test_ranks_of_a_node_share_their_announcements_and_leave_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megatron_energy.session.node.SHARED_MEMORY", tmp_path)
    facts = job(pipeline=4)
    facts = type(facts)(tuple(type(r)(**{**r.__dict__, "node": "ab"[r.rank // 3]}) for r in facts.ranks))
    assert [neighbours(facts, rank) for rank in (0, 2, 3)] == [[0, 1, 2], [0, 1, 2], [3]]
    assert fullest_node(facts) == 3
    meeting = Meeting(4)
    turns = on_all_ranks([lambda r=r: open_memory(ThreadExchange(meeting, r), facts).turns for r in range(3 + 1)])  # type: ignore[misc]
    with turns[0].raising():
        assert turns[1].wait_for_raises(0.001) > 0
        assert turns[3].wait_for_raises(0.001) == 0, "another node"
    assert list(tmp_path.iterdir()) == []
