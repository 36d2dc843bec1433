"""The optimizer step, and with it the end of an iteration: wraps ``step`` of Megatron's optimizer classes."""

import functools
from collections.abc import Callable
from typing import Any

from megatron_energy.megatron.imports import replace

MODULES = ("megatron.core.optimizer.optimizer", "megatron.core.optimizer.distrib_optimizer", "megatron.core.optimizer.layer_wise_optimizer")
"""Where optimizers with a step of their own are defined."""


class OutermostStep:
    """Optimizers call each other's ``step``: only the outermost one is reported."""

    def __init__(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        self._begin = begin
        self._end = end
        self._depth = 0

    def run(self, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run ``step``, between begin and end if it is the outermost."""
        if self._depth:
            return step(*args, **kwargs)
        self._begin()
        self._depth = 1
        try:
            result = step(*args, **kwargs)
        finally:
            self._depth = 0
        self._end()
        return result


def wrap(module: Any, outermost: OutermostStep) -> None:
    """Report the steps of all optimizer classes that ``module`` defines."""
    for found in list(vars(module).values()):
        if isinstance(found, type) and found.__module__ == module.__name__ and _is_optimizer(found) and "step" in vars(found):
            replace(found, step=_reported(vars(found)["step"], outermost))


def _is_optimizer(found: type) -> bool:
    """A concrete class of Megatron's own hierarchy, not one of torch's that it wraps."""
    names = [base.__name__ for base in found.__mro__]
    return "MegatronOptimizer" in names and names[0] != "MegatronOptimizer"


def _reported(step: Callable[..., Any], outermost: OutermostStep) -> Callable[..., Any]:
    @functools.wraps(step)
    def run(*args: Any, **kwargs: Any) -> Any:
        return outermost.run(step, *args, **kwargs)

    return run
