"""What ``pip install`` brings: every module and data file, the command, and no dependency that is not used."""

import re
import shutil
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import megatron_energy
from tests.source_tree import ROOT, modules, third_party

IMPORT_NAMES = {"megatron-core": "megatron", "nvidia-ml-py": "pynvml"}
"""Of distributions that are imported under another name."""

TOP_LEVEL = ["LICENSE", "README.md", "pyproject.toml", "setup.py", "megatron_energy", "patches", "scripts"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built from a copy, so that the checkout stays clean."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in TOP_LEVEL:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif (ROOT / name).exists():
            shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


def wheel_files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def metadata(wheel: Path, name: str = "METADATA") -> str:
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (found for found in archive.namelist() if found.endswith(f".dist-info/{name}"))
        return archive.read(path).decode()


def requirements(wheel: Path) -> tuple[set[str], dict[str, set[str]]]:
    """Names of required distributions: always, and by extra."""
    message: Message = Parser().parsestr(metadata(wheel))
    always: set[str] = set()
    extras: dict[str, set[str]] = {}
    for line in message.get_all("Requires-Dist", []):
        name = re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0].lower()
        extra = re.search(r"extra == ['\"]([^'\"]+)['\"]", line)
        if extra:
            extras.setdefault(extra[1], set()).add(name)
        else:
            always.add(name)
    return always, extras


def test_the_wheel_holds_every_module_and_data_file(wheel: Path) -> None:
    inside = wheel_files(wheel)
    assert {str(path.relative_to(ROOT)) for path in modules().values()} <= inside
    assert "megatron_energy/py.typed" in inside
    data = [path for path in (ROOT / "megatron_energy").rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")]
    assert {str(path.relative_to(ROOT)) for path in data} <= inside


def test_patches_and_scripts_become_subpackages(wheel: Path) -> None:
    inside = wheel_files(wheel)
    for folder in ("patches", "scripts"):
        wanted = [path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix != ".pyc"]
        assert {f"megatron_energy/{path.relative_to(ROOT)}" for path in wanted} <= inside
    assert {name.partition("/")[0] for name in inside if ".dist-info/" not in name} == {"megatron_energy"}


def test_an_installed_package_finds_its_patches_and_command(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = (
        "import megatron_energy, importlib.metadata as metadata\n"
        "from importlib.resources import files\n"
        "print(megatron_energy.__file__, metadata.version('megatron-energy'))\n"
        "print((files('megatron_energy.patches') / 'README.md').is_file())\n"
        "print((files('megatron_energy.scripts') / 'quickstart.sh').is_file())\n"
        "print(*[point.value for point in metadata.distribution('megatron-energy').entry_points])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    where, patches, scripts, commands = done.stdout.splitlines()
    assert where == f"{tmp_path}/megatron_energy/__init__.py {megatron_energy.__version__}"
    assert (patches, scripts) == ("True", "True")
    assert commands.split() == ["megatron_energy.cli.main:main"]
    listed = subprocess.run(
        [sys.executable, "-m", "megatron_energy", "patch", "list"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert listed.stdout.count("megatron-core ") == len(list((ROOT / "patches").glob("*.patch"))) > 0


def test_training_packages_are_extras(wheel: Path) -> None:
    always, extras = requirements(wheel)
    assert always.isdisjoint({"torch", "megatron-core", "tensorboard"})
    assert {"torch", "megatron-core", "tensorboard"} <= extras["training"]
    # PyPI's pynvml is a deprecated shim, PyPI's apex an unrelated package.
    assert (always | set().union(*extras.values())).isdisjoint({"pynvml", "apex"})


def test_every_dependency_is_used_and_every_use_declared(wheel: Path) -> None:
    always, extras = requirements(wheel)
    used = {found.target.partition(".")[0] for module in modules() for found in third_party(module)}
    declared = {IMPORT_NAMES.get(name, name) for name in always}
    assert declared <= used, f"never imported: {sorted(declared - used)}"
    training = {IMPORT_NAMES.get(name, name) for name in extras["training"]}
    assert used <= declared | training, f"not declared: {sorted(used - declared - training)}"


def test_the_metadata_is_what_users_look_at(wheel: Path) -> None:
    message: Message = Parser().parsestr(metadata(wheel))
    assert message["Version"] == megatron_energy.__version__
    assert message["Requires-Python"] == ">=3.10"
    assert message["License-Expression"] == "Apache-2.0"
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {megatron_energy.__version__}" in changes
