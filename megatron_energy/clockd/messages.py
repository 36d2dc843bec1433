"""What may be said over clockd's socket: one JSON object per line, a request and its reply.

    {"id": 1, "op": "hello"}                                           who am I, what may I do
    {"id": 2, "op": "status"}                                          the GPUs I may use
    {"id": 3, "op": "lease", "gpus": ["GPU-..."], "ttl_s": 60}         -> {"lease": "...", ...}
    {"id": 4, "op": "clock", "lease": "...", "gpu": "GPU-...", "max_mhz": 1200}     null: as without a lease
    {"id": 5, "op": "power", "lease": "...", "gpu": "GPU-...", "limit_w": 300}      null: as before the lease
    {"id": 6, "op": "renew", "lease": "..."}
    {"id": 7, "op": "release", "lease": "..."}
    {"id": 8, "op": "evict", "gpus": ["GPU-..."]}                      ends leases of one's own user (operators: of anyone)
    {"id": 9, "op": "restore", "gpus": null}                           operators: ends leases and restores; null: all GPUs

Replies carry the request's id: ``{"id": 4, "ok": true}`` or ``{"id": 4, "ok": false, "error": "denied", "message": "..."}``.
Whatever is not exactly of this form is refused as a whole: unknown or missing keys, other types, a key that stands twice.
"""

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

PROTOCOL = 1
LONGEST_LINE_BYTES = 8192  # a lease of 64 GPUs takes 2.9 kB

ErrorKind: TypeAlias = Literal["malformed", "denied", "busy", "no-lease", "rate", "failed"]
ERROR_KINDS: tuple[ErrorKind, ...] = ("malformed", "denied", "busy", "no-lease", "rate", "failed")
Operation: TypeAlias = Literal["hello", "status", "lease", "clock", "power", "renew", "release", "evict", "restore"]

_LONGEST_TTL_S = 86_400
_MOST_MHZ = 100_000
_MOST_W = 100_000
_MOST_GPUS = 64


class Refusal(Exception):
    """A request that is not granted: its kind for programs, one line for people."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind: ErrorKind = kind


@dataclass(frozen=True, slots=True)
class Request:
    """One request; attributes that its operation does not have keep their defaults.

    Attributes:
        op: what is asked for.
        number: the request's ``id``, or None.
        lease: which lease it is about.
        gpus: UUIDs; None: all.
        ttl_s: how long the lease lasts without being renewed.
        max_mhz: clock, or None to give it back.
        limit_mw: power limit, or None to give it back.
    """

    op: Operation
    number: int | None = None
    lease: str = ""
    gpus: tuple[str, ...] | None = None
    ttl_s: float = 0.0
    max_mhz: int | None = None
    limit_mw: int | None = None

    @property
    def gpu(self) -> str:
        """The one GPU of a clock or power request."""
        return self.gpus[0] if self.gpus else ""


def parse(line: bytes) -> Request:
    """Read one line. Raises Refusal ("malformed")."""
    message = _object(line)
    number = message.pop("id", None)
    if number is not None and not _is_whole(number, 0, 2**53):
        raise Refusal("malformed", "id must be a whole number")
    operation = message.pop("op", None)
    keys = _OPERATIONS.get(operation) if isinstance(operation, str) else None
    if keys is None:
        raise Refusal("malformed", f"op must be one of {', '.join(_OPERATIONS)}")
    if set(message) != set(keys):
        raise Refusal("malformed", f"{operation} takes {' and '.join(keys) or 'nothing'}")
    values: dict[str, Any] = {}
    for key, value in message.items():
        attribute, read = _KEYS[key]
        values[attribute] = read(value)
    return Request(operation, number, **values)


def encode(message: dict[str, Any]) -> bytes:
    """One line."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _object(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError):  # UnicodeDecodeError and JSONDecodeError are ValueErrors; so is a number of thousands of digits
        raise Refusal("malformed", "not one JSON object in UTF-8, each key once") from None
    if not isinstance(message, dict):
        raise Refusal("malformed", "not a JSON object")
    return message


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    message = dict(pairs)
    if len(message) != len(pairs):
        raise ValueError("a key stands twice")
    return message


def _no_constant(_name: str) -> None:
    raise ValueError("NaN and Infinity are no JSON")


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _lease(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[0-9a-f]{16}", value):
        raise Refusal("malformed", "lease must be the 16 hexadecimal digits that a lease was answered with")
    return value


def _uuid(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9-]{1,64}", value):
        raise Refusal("malformed", "a GPU must be a UUID, GPU-...")
    return value


def _uuids(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= _MOST_GPUS:
        raise Refusal("malformed", f"gpus must be a list of 1 to {_MOST_GPUS} UUIDs")
    uuids = tuple(_uuid(entry) for entry in value)
    if len(set(uuids)) != len(uuids):
        raise Refusal("malformed", "gpus names a GPU twice")
    return uuids


def _some_or_all(value: object) -> tuple[str, ...] | None:
    return None if value is None else _uuids(value)


def _one(value: object) -> tuple[str, ...]:
    return (_uuid(value),)


def _ttl_s(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= _LONGEST_TTL_S:  # NaN fails this, too
        raise Refusal("malformed", f"ttl_s must be a number from 1 to {_LONGEST_TTL_S}")
    return float(value)


def _max_mhz(value: object) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or not _is_whole(value, 1, _MOST_MHZ):
        raise Refusal("malformed", "max_mhz must be a whole number of MHz, or null")
    return value


def _limit_mw(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= _MOST_W or not math.isfinite(value):
        raise Refusal("malformed", "limit_w must be a number of W, or null")
    return round(value * 1000)


_KEYS: dict[str, tuple[str, Callable[[object], Any]]] = {
    "lease": ("lease", _lease),
    "gpu": ("gpus", _one),
    "gpus": ("gpus", _some_or_all),
    "ttl_s": ("ttl_s", _ttl_s),
    "max_mhz": ("max_mhz", _max_mhz),
    "limit_w": ("limit_mw", _limit_mw),
}
"""Key of a request -> attribute of Request, and how it is read."""

_OPERATIONS: dict[str, tuple[str, ...]] = {
    "hello": (),
    "status": (),
    "lease": ("gpus", "ttl_s"),
    "clock": ("lease", "gpu", "max_mhz"),
    "power": ("lease", "gpu", "limit_w"),
    "renew": ("lease",),
    "release": ("lease",),
    "evict": ("gpus",),
    "restore": ("gpus",),
}
