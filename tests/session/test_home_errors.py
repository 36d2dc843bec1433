"""Errors of ours on one rank alone, between two exchanges: the others wait there, so it goes on to the next exchange all the same."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from megatron_energy.megatron import torch_exchange
from megatron_energy.megatron.torch_exchange import TorchExchange
from megatron_energy.session.exchange import ExchangeError, Lost, all_packed, intact, packed, unpacked
from tests.session.timetable_job import LOG_INTERVAL, Job

HOME = -1


def fails(*_arguments: object, **_named: object) -> Any:
    raise KeyError("units")


def take(job: Job) -> tuple[Any, str]:
    return job.conductor, "take"


def write(job: Job) -> tuple[Any, str]:
    return job.conductor, "write"


def records(job: Job) -> tuple[Any, str]:
    return job.instruments[HOME], "records"


def whole_records(job: Job) -> tuple[Any, str]:
    return job.sessions[HOME], "_recorded"


@pytest.mark.parametrize("part", [take, write, records, whole_records])
@pytest.mark.parametrize("second", ["", "say", "to_maximum"])
def test_an_error_at_home_keeps_no_rank_waiting(
    planned: Job, monkeypatch: pytest.MonkeyPatch, part: Callable[[Job], tuple[Any, str]], second: str
) -> None:
    """``second``: what fails too, while the first error is dealt with."""
    planned.meeting.barrier._timeout = 10.0  # type: ignore[attr-defined]  # a rank that is not met fails the test sooner
    if second:
        monkeypatch.setattr(planned.conductor.coordinator if second == "say" else planned.controllers[HOME], second, fails)
    monkeypatch.setattr(*part(planned), fails)
    before = planned.meeting.exchanges
    planned.iterate(2 * LOG_INTERVAL)
    assert planned.meeting.exchanges - before == 2 * 2
    assert not any(session._talking.failed for session in planned.sessions)
    assert planned.conductor._background.idle(60.0), "its thread goes on"
    if second != "say" or part in (take, write):
        assert planned.sessions[0]._timetable.at(planned.number + 1).phase == "maximum"


class Unpicklable:
    def __reduce__(self) -> Any:
        raise TypeError("no way")


class Unreadable:
    def __reduce__(self) -> Any:
        return fails, ()


def test_what_cannot_travel_is_told_in_its_place() -> None:
    assert unpacked(packed({"a": 1})) == {"a": 1}
    assert unpacked(packed(Unpicklable())) == Lost("what a rank hands over cannot be pickled (TypeError: no way)")
    assert unpacked(packed(Unreadable())) == Lost("what a rank handed over cannot be read (KeyError: 'units')")
    assert [unpacked(data) for data in all_packed([1, 2])] == [1, 2]
    assert [type(unpacked(data)) for data in all_packed([1, Unpicklable()])] == [Lost] * 2
    with pytest.raises(ExchangeError, match="no way"):
        intact(unpacked(packed(Unpicklable())))


def test_a_rank_whose_batch_is_lost_ends_the_plan_for_all(planned: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned.sessions[0], "_batch", lambda: Lost("what a rank hands over cannot be pickled"))
    planned.iterate(2 * LOG_INTERVAL)
    assert {session._timetable.at(planned.number + 1).phase for session in planned.sessions} == {"maximum"}
    planned.conductor._background.idle(60.0)
    assert "ExchangeError: what a rank hands over cannot be pickled" in planned.said[-1]


def test_the_network_carries_what_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []

    def scatter(received: list[Any], items: list[Any], **_group: object) -> None:
        sent[:] = items
        received[0] = items[0]

    monkeypatch.setattr(torch_exchange.dist, "scatter_object_list", scatter)
    exchange = TorchExchange.__new__(TorchExchange)
    exchange.rank, exchange.world_size, exchange.home, exchange._group = 1, 2, 1, None
    with pytest.raises(ExchangeError, match="no way"):
        exchange.scatter([1, Unpicklable()])
    assert [type(pickle.loads(data)) for data in sent] == [Lost] * 2, "every rank hears of it"
    assert exchange.scatter([1, 2]) == 1
