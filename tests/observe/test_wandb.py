"""Weights & Biases gets what TensorBoard gets, a step in one call."""

from typing import Any

from megatron_energy.observe.tensorboard import TensorBoardLog
from megatron_energy.observe.wandb import WithWandb
from tests.observe.sample_records import run_summaries
from tests.observe.test_tensorboard import MemoryWriter


class MemoryWandb:
    """Keeps what it is given; breaks at one step."""

    def __init__(self, broken_at: int | None = None) -> None:
        self.steps: dict[int, dict[str, float]] = {}
        self.broken_at = broken_at

    def log(self, data: dict[str, Any], step: int) -> None:
        if step == self.broken_at:
            raise ConnectionError("no network")
        assert step not in self.steps, "one call per step"
        self.steps[step] = data


def write(tensorboard: MemoryWriter | None, wandb: MemoryWandb) -> list[str]:
    said: list[str] = []
    log = TensorBoardLog(WithWandb(tensorboard, wandb, said.append))
    for summary in run_summaries():
        log.add(summary)
        if summary.phase != "evaluation":
            log.write(summary.iteration)
    log.finish({"policy": "segments"}, {"saved-percent": 1.0})
    return said


def test_the_same_scalars() -> None:
    tensorboard, wandb = MemoryWriter(), MemoryWandb()
    assert write(tensorboard, wandb) == []
    assert {
        tag: {step: data[tag] for step, data in wandb.steps.items() if tag in data} for tag in tensorboard.scalars
    } == tensorboard.scalars
    assert set().union(*wandb.steps.values()) == set(tensorboard.scalars)
    assert tensorboard.texts and tensorboard.layouts and tensorboard.hparams, "the rest is TensorBoard's"


def test_without_tensorboard() -> None:
    alone, both = MemoryWandb(), MemoryWandb()
    write(None, alone)
    write(MemoryWriter(), both)
    assert alone.steps == both.steps != {}


def test_a_service_that_fails_ends_its_own_figures_only() -> None:
    tensorboard, wandb = MemoryWriter(), MemoryWandb(broken_at=2)
    assert write(tensorboard, wandb) == ["no more energy figures in Weights & Biases: ConnectionError: no network"]
    assert list(wandb.steps) == [1]
    assert max(step for steps in tensorboard.scalars.values() for step in steps) > 2
