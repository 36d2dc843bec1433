"""Jobs that follow timetables (:mod:`tests.session.timetable_job`), for the files that test their course and what they hear of others."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from megatron_energy.session import conductor as conductors
from tests.session.small_job import OPTIONS, make
from tests.session.timetable_job import BASELINE, PLANNED_FROM, Job


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log interval waits for the plan, so that runs are repeatable."""
    monkeypatch.setattr(conductors.Conductor.take, "__defaults__", (60.0,))


@pytest.fixture
def new_job(tmp_path: Path, patient: None) -> Callable[..., Job]:
    """Makes a job with the options of :class:`Job`."""
    return lambda **options: Job(tmp_path, **options)


@pytest.fixture(scope="module")
def plan_of_small_job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan that a job takes as given."""
    return make(tmp_path_factory.mktemp("plan")) / "plan.json"


@pytest.fixture
def planned(plan_of_small_job: Path, tmp_path: Path, patient: None) -> Job:
    """A job with a given plan, in its first iteration under it."""
    job = Job(tmp_path, replace(OPTIONS, plan=str(plan_of_small_job)))
    job.iterate(PLANNED_FROM)
    assert job.phases == [*BASELINE, *["planning"] * 2, "planned"]
    return job
