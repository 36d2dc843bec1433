"""``megatron_energy.attach``: the trainer that docs/attach.md shows, and what is refused."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import megatron_energy
from megatron_energy.errors import UserError
from megatron_energy.megatron import attached, runtime
from megatron_energy.megatron.runtime import EnergyRuntime
from megatron_energy.observe.journal import Journal
from megatron_energy.session.options import EnergyOptions
from tests.documents import blocks
from tests.megatron.launching import REPOSITORY, launch, needs_megatron
from tests.session.launched import UNTIL_PLAN

PAGE = REPOSITORY / "docs" / "attach.md"


@needs_megatron
def test_the_trainer_of_the_page_runs_under_a_plan(tmp_path: Path) -> None:
    trainer = next(block.text for block in blocks(PAGE) if "def main()" in block.text)
    (tmp_path / "train.py").write_text(trainer.replace('dir="energy"', f"dir={str(tmp_path / 'energy')!r}"))
    done = launch("--nproc", "2", tmp_path / "train.py")
    assert done.returncode == 0, done.stderr[-4000:]
    assert [int(step) for step in re.findall(r"step (\d+): loss \d", done.stdout)] == [4, 8, 12]
    phases = [i.phase for i in Journal(tmp_path / "energy").read()]
    assert phases == ["baseline"] * 2 + ["sweep"] * (UNTIL_PLAN - 2) + ["planned"] * (12 - UNTIL_PLAN)
    assert "Saved " in done.stdout and "2 emulated GPUs" in done.stdout


class Energy(EnergyRuntime):
    """Remembers log calls and its end."""

    def __init__(self) -> None:
        super().__init__(EnergyOptions(policy="measure"))
        self.told: list[object] = []

    def on_log(self, iteration: int, writer: object) -> None:
        self.told.append((iteration, writer))

    def close(self) -> None:
        self.told.append("closed")


def test_what_was_not_logged_is_handed_in_at_the_end() -> None:
    energy = Energy()
    with attached.Attached(energy) as scheduler:
        energy.iterations = 10
        scheduler.log(10, "writer")
        assert not energy.logs_itself
        energy.iterations = 13
    assert energy.told == [(10, "writer"), (13, None), "closed"]
    scheduler.close()
    assert len(energy.told) == 3, "closed once"


def test_a_resumed_trainer_hands_in_the_rest_too() -> None:
    energy = Energy()
    with attached.Attached(energy) as scheduler:
        energy.iterations = 4  # of this process
        scheduler.log(1004)
        energy.iterations = 5
    assert energy.told == [(1004, None), (1005, None), "closed"]


def test_nothing_is_handed_in_twice_or_after_an_error() -> None:
    energy = Energy()
    with attached.Attached(energy) as scheduler:
        energy.iterations = 10
        scheduler.log(10)
    assert energy.told == [(10, None), "closed"]
    failed = Energy()
    with pytest.raises(RuntimeError), attached.Attached(failed):
        failed.iterations = 10
        raise RuntimeError
    assert failed.told == ["closed"], "other ranks may not come to a gathering"


def test_flags_are_keywords(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[EnergyOptions] = []
    monkeypatch.setattr(runtime, "_started", [])
    monkeypatch.setattr(runtime, "check", seen.append)
    monkeypatch.setattr(runtime, "start", lambda options: Energy())
    megatron_energy.attach("uniform", max_switches=4, slowdown=0.02, dir="here", profile=None)
    (options,) = seen
    assert (options.policy, options.max_switches, options.slowdown, options.directory) == ("uniform", 4, 0.02, "here")
    assert options.given == ("directory", "max_switches", "policy", "slowdown")
    for mistake, said in (({"policy": "all"}, "--energy-policy all: choose one of"), ({"speed": 1}, "unknown option --energy-speed")):
        with pytest.raises(UserError, match=said):
            megatron_energy.attach(**mistake)
    monkeypatch.setattr(runtime, "_started", [Energy()])
    with pytest.raises(UserError, match="is attached to this process already"):
        megatron_energy.attach("measure")


def test_off_attaches_nothing() -> None:
    with megatron_energy.attach("off") as scheduler:
        scheduler.log(1)


def test_importing_the_package_brings_nothing_in() -> None:
    shown = "import sys, megatron_energy; print([m for m in sys.modules if m.startswith('megatron_energy.')])"
    done = subprocess.run([sys.executable, "-c", shown], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
