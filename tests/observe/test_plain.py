"""Values that JSON can hold."""

import json
from pathlib import Path

import numpy as np
import pytest

from megatron_energy.observe.plain import plain, write_json
from megatron_energy.records.iteration import Span


def test_numpy_and_dataclasses_become_plain() -> None:
    value = {"a": np.float32(0.5), "b": np.arange(3), 3: (np.int64(7), np.bool_(True)), "path": Path("x/y")}
    assert plain(value) == {"a": 0.5, "b": [0, 1, 2], "3": [7, True], "path": "x/y"}
    assert plain(Span("wait", -1, -1, 0.0, np.float64(1.5), 1410.0))["end_s"] == 1.5  # type: ignore[index,call-overload]


@pytest.mark.parametrize("missing", [float("nan"), float("inf"), np.float64("nan"), np.float32("-inf")])
def test_what_is_not_a_number_becomes_null(missing: float) -> None:
    assert json.dumps(plain([missing, 1]), allow_nan=False) == "[null, 1]"


def test_an_unknown_kind_is_refused_rather_than_written_as_text() -> None:
    with pytest.raises(TypeError, match="set"):
        plain({1, 2})


def test_write_json_replaces_a_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "new" / "summary.json"
    write_json(target, {"a": 1})
    write_json(target, {"a": np.int64(2)})
    assert json.loads(target.read_text()) == {"a": 2}
    assert list(target.parent.iterdir()) == [target]
