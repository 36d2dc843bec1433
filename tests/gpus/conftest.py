from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.emulated_gpus import EmulatedNode, emulated_node


@pytest.fixture
def emulated(tmp_path: Path) -> Iterator[EmulatedNode]:
    """Four emulated A100 in wall time, on a clock that only the test moves."""
    with emulated_node(tmp_path) as node:
        yield node
