"""A long run in a small form: once its windows are full, nothing is added to what it keeps."""

import gc
import sys
from pathlib import Path

from tests.tools.loading import load_tool

check_memory = load_tool("check_memory")


def blocks() -> int:
    """Of memory that Python's objects take."""
    gc.collect()
    return sys.getallocatedblocks()


def test_a_long_run_keeps_no_more_than_a_short_one(tmp_path: Path) -> None:
    run = check_memory.LongRun(tmp_path)
    run.run(2_100)  # past the first evaluation, live switch, baseline windows; the noise estimate is full
    before = blocks()
    run.run(3_000)
    assert blocks() - before < 300  # a tenth of an object per iteration
    findings = run.coordinator.findings
    assert findings.windows.count > 10 and findings.planned is not None
    report = run.reporter.finish()
    assert report.planned_iterations > 2_000 and report.windows.drift_percent is not None
