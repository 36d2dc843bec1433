import re

import pytest

from tests.tools.loading import load_tool


def test_the_tool_prints_every_function_and_counts_its_cases(capsys: pytest.CaptureFixture[str]) -> None:
    assert load_tool("check_nvml_errors").main([]) == 0
    text = capsys.readouterr().out
    rows = [line for line in text.splitlines() if line.startswith("| nvml")]
    assert len({row.split(" | ")[0] for row in rows}) >= 25
    cases = re.search(r"(\d+) cases; no wrong number", text)
    assert cases is not None and int(cases[1]) > 2000
