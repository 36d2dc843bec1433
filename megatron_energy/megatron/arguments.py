"""Reading the arguments of a foreign call by name, cheaply: Megatron's functions gain and lose parameters between versions."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any


class Argument:
    """One parameter of a function, by name; a version without it gives None."""

    __slots__ = ("_index", "_name")

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._name = name
        positional = [
            p.name
            for p in inspect.signature(function).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]  # fmt: skip
        self._index = positional.index(name) if name in positional else None

    def of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Its value in a call; None where it is left to its default."""
        if self._name in kwargs:
            return kwargs[self._name]
        if self._index is not None and self._index < len(args):
            return args[self._index]
        return None
