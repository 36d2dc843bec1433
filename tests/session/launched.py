"""Runs of the launcher for tests, several in one process to save the imports, and what they leave behind."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron_energy.observe.journal import Journal
from megatron_energy.records.summary import IterationSummary
from tests.megatron.launching import REPOSITORY

SCRIPT = Path(__file__).with_name("eventful_gpt.py")
EMULATED = ["--energy-device", "emulated", "--energy-emulated-model", "gpt3-13b", "--energy-emulated-micro-batch", "4"]
SHORT = ["--energy-baseline-iterations", "1", "--energy-sweep-clocks", "3"]
UNTIL_PLAN = 1 + 1 + 2 * 3
"""Steps of a run with :data:`SHORT` before the first one under the plan: the first step, the baseline, two at every clock."""


@dataclass(frozen=True)
class Done:
    """One launch that has ended.

    Attributes:
        status: exit status.
        out, err: what it printed.
        directory: its --energy-dir.
    """

    status: int
    out: str
    err: str
    directory: Path

    @property
    def iterations(self) -> list[IterationSummary]:
        return Journal(self.directory).read()

    @property
    def phases(self) -> list[str]:
        return [i.phase for i in self.iterations]

    @property
    def said(self) -> list[str]:
        """Our own lines."""
        return [line for line in (self.out + self.err).splitlines() if line.startswith(("megatron-energy: ", "error: "))]

    def json(self, name: str) -> Any:
        return json.loads((self.directory / name).read_text())


@dataclass(frozen=True)
class Training:
    """Arguments of tiny_gpt.py, and events by step (see eventful_gpt.py)."""

    arguments: Sequence[str]
    events: Mapping[str, str]


def launch_all(folder: Path, launches: Mapping[str, Sequence[str | Path]], modules: Path | None = None) -> dict[str, Done]:
    """Run the launcher with every list of arguments, one after the other; ``--energy-dir`` is FOLDER/<name>-energy unless given.

    ``modules``: a folder with further modules to import.
    """
    words = {name: [str(w) for w in launch] for name, launch in launches.items()}
    directories = {}
    for name, launch in words.items():
        if "--energy-dir" not in launch and any(w.startswith("--energy-") for w in launch):
            launch += ["--energy-dir", str(folder / f"{name}-energy")]
        directories[name] = Path(launch[launch.index("--energy-dir") + 1]) if "--energy-dir" in launch else folder
    (folder / "launches.json").write_text(json.dumps(words))
    inherited = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.session.several_launches", str(folder)],
        cwd=REPOSITORY,
        env={**inherited, "PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY, *([modules] if modules else []))))},
        capture_output=True,
        text=True,
        timeout=600,  # far above what it takes
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    statuses = json.loads((folder / "statuses.json").read_text())
    return {
        name: Done(statuses[name], (folder / f"{name}.out").read_text(), (folder / f"{name}.err").read_text(), directories[name])
        for name in launches
    }


def training(folder: Path, ranks: int, cases: Mapping[str, Training], *energy: str | Path) -> list[str | Path]:
    """Arguments of the launcher for trainings of eventful_gpt.py; results go to FOLDER/<case>-<rank>.json (FOLDER is made)."""
    folder.mkdir(parents=True)
    file = folder / "cases.json"
    file.write_text(json.dumps({name: {"arguments": case.arguments, "events": case.events} for name, case in cases.items()}))
    return ["--nproc", str(ranks), SCRIPT, "--cases", file, "--out", folder, *energy]


def results(folder: Path, case: str, ranks: int) -> list[dict[str, Any]]:
    """What every rank wrote about its training."""
    return [json.loads((folder / f"{case}-{rank}.json").read_text()) for rank in range(ranks)]
