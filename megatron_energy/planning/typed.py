"""Dataclasses from the plain values of a JSON file, each checked against its annotation.

A file that people keep, copy and edit may hold anything; what does not fit is named by its place in the file::

    build(Segment, {"kind": "forward", "chunk": 0, "microbatch": 3, "clock_mhz": "fast"}, "segments[2]")
    # ValueError: segments[2].clock_mhz: 'fast' is not a whole number
"""

import dataclasses
import sys
import types
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

LARGEST = 2**63 - 1
"""Whole numbers beyond it fit into no array."""


def build(kind: type[T], value: object, place: str = "") -> T:
    """A dataclass from a mapping of its fields; nested dataclasses, tuples, mappings, literals and unions with None work likewise.

    Args:
        kind: a dataclass.
        value: what the file holds; every field without a default must be there, and nothing else.
        place: where it stands in the file, for the message.

    Raises:
        ValueError: names the place and what is wrong there.
    """
    if not isinstance(value, Mapping):
        raise _wrong(place, value, "an object")
    hints = get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind) if f.init}  # type: ignore[arg-type]
    unknown = [name for name in value if name not in fields]
    if unknown:
        raise ValueError(f"{_inside(place, unknown[0])} is not known here")
    missing = [
        name
        for name, f in fields.items()
        if name not in value and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ValueError(f"{_inside(place, missing[0])} is missing")
    return kind(**{name: _convert(hints[name], given, _inside(place, name)) for name, given in value.items()})


def _convert(hint: Any, value: Any, place: str) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return build(hint, value, place)
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        if value not in inner:
            raise _wrong(place, value, "one of " + ", ".join(map(str, inner)))
        return value
    if origin in (Union, types.UnionType):
        return _one_of(inner, value, place)
    if origin is tuple:
        if not isinstance(value, list):
            raise _wrong(place, value, "a list")
        return tuple(_convert(inner[0], element, f"{place}[{number}]") for number, element in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise _wrong(place, value, "an object")
        return {name: _convert(inner[1], given, _inside(place, name)) for name, given in value.items()}
    return _plain(hint, value, place)


def _one_of(hints: tuple[Any, ...], value: Any, place: str) -> Any:
    if value is None and types.NoneType in hints:
        return None
    problems = []
    for hint in hints:
        if hint is types.NoneType:
            continue
        try:
            return _convert(hint, value, place)
        except ValueError as problem:
            problems.append(problem)
    raise problems[-1]


def _plain(hint: Any, value: Any, place: str) -> Any:
    names = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a text"}
    if hint not in names:
        raise TypeError(f"{place}: no rule for {hint}")
    is_bool = isinstance(value, bool)  # which Python counts as a number
    fits = {
        bool: is_bool,
        int: isinstance(value, int) and not is_bool and abs(value) <= LARGEST,
        float: isinstance(value, int | float) and not is_bool and abs(value) <= sys.float_info.max,  # false for nan, too
        str: isinstance(value, str),
    }
    if not fits[hint]:
        raise _wrong(place, value, names[hint])
    return float(value) if hint is float else value


def _inside(place: str, name: object) -> str:
    return f"{place}.{name}" if place else str(name)


def _wrong(place: str, value: object, wanted: str) -> ValueError:
    shown = repr(value)
    shown = shown if len(shown) <= 40 else shown[:37] + "..."
    return ValueError(f"{place or 'the file'}: {shown} is not {wanted}")
