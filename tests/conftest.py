"""What all tests share: where the published profiles and other versions of megatron-core are, and settings that make runs repeatable."""

import importlib.util
import os
from pathlib import Path

import pytest
from hypothesis import settings

# Plots are drawn into files, and hypothesis tries the same examples every time, however slow the machine is.
os.environ.setdefault("MPLBACKEND", "Agg")
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def is_installed(module: str) -> bool:
    """Whether a module can be found, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with the published profiles; tests that need it are skipped without."""
    folder = os.environ.get("MEGATRON_ENERGY_DATA")
    if not folder:
        pytest.skip("set MEGATRON_ENERGY_DATA to the folder with the published profiles")
    return Path(folder)


@pytest.fixture(scope="session")
def megatron_training() -> None:
    """Skips where torch or megatron.training is not installed (both are extras)."""
    if not (is_installed("torch") and is_installed("megatron.training")):
        pytest.skip("needs torch and megatron-core with megatron.training: scripts/setup.sh --test installs both")


@pytest.fixture(scope="session")
def other_megatron_cores() -> dict[str, Path]:
    """Further versions of megatron-core: version -> folder, to be put first on PYTHONPATH of a new process.

    scripts/test.sh --system (or CI=1) installs them; tests that need them are skipped without.
    """
    folders = [Path(folder) for folder in os.environ.get("MEGATRON_ENERGY_OTHER_CORES", "").split(os.pathsep) if folder]
    if not folders:
        pytest.skip("other versions of megatron-core are tested with scripts/test.sh --system")
    return {folder.name: folder for folder in folders}
