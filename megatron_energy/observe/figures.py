"""Figures as people read them."""

import math

UNKNOWN = "-"
UNRESOLVED = "~0"
"""A change that is smaller than what the counters can tell apart."""


def figure(value: float | None, form: str, unit: str = "") -> str:
    """``value`` in a format of :func:`format`; what rounds to zero has no minus, what is not known is a dash."""
    if value is None or math.isnan(value):
        return UNKNOWN
    text = format(value, form)
    if value < 0 and not any(digit in text for digit in "123456789"):
        text = format(0.0, form)
    return text + unit


def change(value: float | None, resolution: float | None, form: str, unit: str = "") -> str:
    """A change against something measured: not a number where it is smaller than the ``resolution``, in the same unit."""
    if value is not None and resolution is not None and abs(value) < resolution:
        return UNRESOLVED
    return figure(value, form, unit)
