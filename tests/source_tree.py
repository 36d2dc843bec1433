"""Python sources as the repository's own tests see them: files under version control, their modules and imports."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "megatron_energy"


@cache
def tracked_files() -> tuple[Path, ...]:
    """All files under version control, absolute; skips the test outside of a git checkout."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listing = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], check=True, capture_output=True, text=True).stdout
    return tuple(path for name in listing.split("\0") if name and (path := ROOT / name).is_file())


def package_files() -> list[Path]:
    """Every Python file of the package, under version control or not yet."""
    return sorted((ROOT / PACKAGE).rglob("*.py"))


@cache
def parse(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def module_name(path: Path) -> str:
    """``megatron_energy/gpus/meter.py`` -> ``megatron_energy.gpus.meter``."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    return {module_name(path): path for path in package_files()}


@dataclass(frozen=True)
class Import:
    """One imported module. ``lazy``: inside a function, so only when that is called."""

    importer: str
    target: str
    line: int
    lazy: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.target}"


def imports_of(module: str) -> list[Import]:
    """The imports of a module of the package, those inside functions included; names are resolved to modules."""
    path = modules()[module]
    return [
        Import(module, target, node.lineno, lazy) for node, lazy in _import_nodes(parse(path)) for target in _targets(module, path, node)
    ]


def _import_nodes(tree: ast.AST, lazy: bool = False) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, lazy
        else:
            yield from _import_nodes(node, lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))


def _targets(module: str, path: Path, node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = node.module or ""
    if node.level:
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        parents = package.split(".")
        base = ".".join([*parents[: len(parents) - node.level + 1], *([base] if base else [])])
    # `from megatron_energy.gpus import meter` imports the module megatron_energy.gpus.meter.
    return [child if (child := f"{base}.{alias.name}") in modules() else base for alias in node.names]


def reach(starts: list[str]) -> set[str]:
    """All modules of the package that importing the given ones brings in, at once or later; parent packages included."""
    seen: set[str] = set()
    waiting = list(starts)
    while waiting:
        module = waiting.pop()
        if module in seen or module not in modules():
            continue
        seen.add(module)
        waiting.append(module.rpartition(".")[0])
        waiting.extend(found.target for found in imports_of(module))
    return seen


def third_party(module: str) -> list[Import]:
    """The imports of a module that are neither Python's own nor of the package."""
    ours = {*sys.stdlib_module_names, PACKAGE}
    return [found for found in imports_of(module) if found.target.partition(".")[0] not in ours]
