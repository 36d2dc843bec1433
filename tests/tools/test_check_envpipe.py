"""The check of EnvPipe runs without the published data, and fails where a run takes more steps than are proven."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def check() -> ModuleType:
    path = Path(__file__).parents[2] / "tools" / "check_envpipe.py"
    found = importlib.util.spec_from_file_location("check_envpipe", path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def run(check: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.delenv("MEGATRON_ENERGY_DATA", raising=False)
    monkeypatch.setattr("sys.argv", ["check_envpipe.py", *arguments])
    return int(check.main())


def test_random_profiles_end(check: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(check, monkeypatch, "--profiles", "25") == 0
    assert "25 random profiles ended after at most" in capsys.readouterr().out


def test_too_many_steps_are_a_failure(check: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "random_runs", lambda count: iter([(3, 5), (6, 5)]))
    assert run(check, monkeypatch) == 1
