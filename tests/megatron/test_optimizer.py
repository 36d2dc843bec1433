"""The outermost optimizer step ends the iteration."""

import sys
from types import ModuleType

import pytest

from megatron_energy.megatron import optimizer

SOURCE = """
class MegatronOptimizer:
    def step(self): raise NotImplementedError

class Inner(MegatronOptimizer):
    def step(self): events.append("inner"); return "stepped"

class Chained(MegatronOptimizer):
    def step(self): return [Inner().step(), Inner().step()]

class Distributed(Inner): pass

class Torch:  # not Megatron's
    def step(self): events.append("torch")

class Failing(MegatronOptimizer):
    def step(self): raise ValueError("overflow")
"""


@pytest.fixture
def module() -> ModuleType:
    made = ModuleType("optimizers_of_a_test")
    made.events = []  # type: ignore[attr-defined]
    sys.modules[made.__name__] = made
    exec(SOURCE, made.__dict__)
    optimizer.wrap(made, optimizer.OutermostStep(lambda: made.events.append("begin"), lambda: made.events.append("end")))
    del sys.modules[made.__name__]
    return made


def test_chained_steps_are_one(module: ModuleType) -> None:
    assert module.Chained().step() == ["stepped", "stepped"]
    assert module.events == ["begin", "inner", "inner", "end"]


def test_inherited_steps_are_reported_once(module: ModuleType) -> None:
    assert module.Distributed().step() == "stepped"
    assert module.events == ["begin", "inner", "end"]


def test_other_optimizers_are_left_alone(module: ModuleType) -> None:
    module.Torch().step()
    assert module.events == ["torch"]


def test_a_step_that_raises_does_not_end_the_iteration_nor_hide_the_next_one(module: ModuleType) -> None:
    with pytest.raises(ValueError, match="overflow"):
        module.Failing().step()
    assert module.events == ["begin"]
    module.Inner().step()
    assert module.events == ["begin", "begin", "inner", "end"]
