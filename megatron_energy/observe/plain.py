"""Values as JSON can hold them: no numpy types, no NaN, no dataclasses."""

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from megatron_energy.atomic import write_whole

Plain: TypeAlias = bool | int | float | str | list["Plain"] | dict[str, "Plain"] | None


def plain(value: Any) -> Plain:
    """Turn ``value`` into what ``json.dumps(..., allow_nan=False)`` accepts.

    Numpy scalars and arrays become Python numbers and lists, dataclasses dictionaries, paths strings. NaN and infinities
    become None: JSON has no word for them, and a missing measurement must not read as a number.

    Raises:
        TypeError: a value of a kind that a record should not hold.
    """
    if isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist())
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"a record cannot hold a {type(value).__name__}")


def write_json(path: str | Path, value: Any, *, indent: int | None = 1) -> None:
    """Write ``value`` as JSON so that a reader finds the old file or the new one, never half of it."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(plain(value), indent=indent, allow_nan=False) + "\n")
