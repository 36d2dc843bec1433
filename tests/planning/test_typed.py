from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from megatron_energy.planning.typed import build


@dataclass(frozen=True)
class Inner:
    clock_mhz: int
    kind: Literal["forward", "backward"] = "forward"


@dataclass(frozen=True)
class Outer:
    name: str
    length_s: float
    parts: tuple[Inner, ...]
    share: float | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    facts: dict[str, str | float | bool] = field(default_factory=dict)


GOOD: dict[str, Any] = {"name": "a", "length_s": 2, "parts": [{"clock_mhz": 1410}, {"clock_mhz": 900, "kind": "backward"}]}


def test_nested_values_take_their_types() -> None:
    built = build(Outer, {**GOOD, "share": None, "sizes": {"tensor": 2}, "facts": {"gpu": "A100", "power_w": 400, "emulated": True}})
    assert built == Outer(
        "a", 2.0, (Inner(1410), Inner(900, "backward")), None, {"tensor": 2}, {"gpu": "A100", "power_w": 400.0, "emulated": True}
    )
    assert isinstance(built.length_s, float)
    assert built.facts["emulated"] is True  # not the number 1


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"length_s": "2"}, "length_s: '2' is not a finite number"),
        ({"length_s": 10**400}, "length_s: 1000000000000000000000000000000000000... is not a finite number"),
        ({"sizes": {"tensor": 10**30}}, "sizes.tensor: 1000000000000000000000000000000 is not a whole number"),
        ({"length_s": True}, "length_s: True is not a finite number"),
        ({"length_s": float("nan")}, "length_s: nan is not a finite number"),
        ({"name": None}, "name: None is not a text"),
        ({"share": "x"}, "share: 'x' is not a finite number"),
        ({"parts": {}}, "parts: {} is not a list"),
        ({"parts": [7]}, "parts[0]: 7 is not an object"),
        ({"parts": [{"clock_mhz": 1410}, {}]}, "parts[1].clock_mhz is missing"),
        ({"parts": [{"clock_mhz": 1e3}]}, "parts[0].clock_mhz: 1000.0 is not a whole number"),
        ({"parts": [{"clock_mhz": True}]}, "parts[0].clock_mhz: True is not a whole number"),
        ({"parts": [{"clock_mhz": 1, "kind": "sideways"}]}, "parts[0].kind: 'sideways' is not one of forward, backward"),
        ({"parts": [{"clock_mhz": 1, "kind": []}]}, "parts[0].kind: [] is not one of forward, backward"),
        ({"sizes": {"tensor": None}}, "sizes.tensor: None is not a whole number"),
        ({"facts": {"gpu": None}}, "facts.gpu: None is not true or false"),
        ({"colour": "red"}, "colour is not known here"),
    ],
)
def test_what_does_not_fit_is_named_by_its_place(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError) as caught:
        build(Outer, {**GOOD, **change})
    assert str(caught.value) == complaint


def test_the_whole_must_be_an_object() -> None:
    with pytest.raises(ValueError, match="the file: 3 is not an object"):
        build(Outer, 3)
