"""Starting the launcher from tests."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import is_installed

REPOSITORY = Path(__file__).resolve().parents[2]

needs_megatron = pytest.mark.skipif(
    not (is_installed("torch") and is_installed("megatron.core")), reason="needs torch and megatron-core, which are extras"
)
TINY_GPT = Path(__file__).with_name("tiny_gpt.py")


def launch(*words: str | Path, core: Path | None = None, timeout_s: float = 300, **environment: str) -> subprocess.CompletedProcess[str]:
    """``python -m megatron_energy.run WORDS`` from the repository.

    Args:
        words: arguments.
        core: folder with another version of megatron-core, put first on the path.
        timeout_s: far above what a run takes.
        environment: further variables.
    """
    path = [str(folder) for folder in (core, REPOSITORY) if folder is not None]
    inherited = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return subprocess.run(
        [sys.executable, "-m", "megatron_energy.run", *map(str, words)],
        cwd=REPOSITORY,
        env={**inherited, "PYTHONPATH": os.pathsep.join(path), **environment},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def run_tiny_gpt(folder: Path, ranks: int, cases: Mapping[str, Sequence[str]], core: Path | None = None) -> dict[str, list[dict[str, Any]]]:
    """Run the trainings of ``cases`` (name -> arguments of tiny_gpt.py) with that many ranks; name -> what every rank wrote."""
    (folder / "cases.json").write_text(json.dumps(cases))
    done = launch("--nproc", str(ranks), TINY_GPT, "--cases", folder / "cases.json", "--out", folder, core=core)
    assert done.returncode == 0, done.stderr[-4000:]
    return {name: [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(ranks)] for name in cases}
