"""Rules for every file of the repository: size, documentation, units in names, and no trace of one particular machine."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.source_tree import ROOT, package_files, parse, tracked_files

LONGEST_FUNCTION_LINES = 60
LONGEST_FILE_LINES = 300

QUANTITIES = {"clock", "energy", "frequency", "latency", "power", "temperature", "time", "duration", "interval", "delay", "voltage"}
"""A number whose name ends with one of these words lacks its unit."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def sources(*suffixes: str) -> list[Path]:
    return [path for path in tracked_files() if path.suffix in suffixes]


def functions(path: Path) -> Iterator[Function]:
    return (node for node in ast.walk(parse(path)) if isinstance(node, Function))


def test_functions_are_short() -> None:
    long = [
        f"{relative(path)}:{function.lineno} {function.name}: {lines} lines"
        for path in sources(".py")
        for function in functions(path)
        if (lines := (function.end_lineno or 0) - function.lineno + 1) > LONGEST_FUNCTION_LINES
    ]
    assert not long


def test_files_are_short() -> None:
    lines = {relative(path): len(path.read_text(encoding="utf-8").splitlines()) for path in sources(".py", ".sh", ".js")}
    assert not {name: count for name, count in lines.items() if count >= LONGEST_FILE_LINES}


def public(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Public classes, functions and methods below a node; what is inside a function is private."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | Function) and not child.name.startswith("_"):
            yield prefix + child.name, child
            if isinstance(child, ast.ClassDef):
                yield from public(child, f"{prefix}{child.name}.")


def is_overload(node: ast.AST) -> bool:
    return isinstance(node, Function) and any(ast.unparse(decorator).endswith("overload") for decorator in node.decorator_list)


def test_everything_public_is_documented() -> None:
    bare = [relative(path) for path in package_files() if not ast.get_docstring(parse(path))]
    for path in package_files():
        bare += [
            f"{relative(path)}:{node.lineno} {name}"
            for name, node in public(parse(path))
            if isinstance(node, ast.ClassDef | Function) and not ast.get_docstring(node) and not is_overload(node)
        ]
    assert not bare


def numbers(path: Path) -> Iterator[tuple[int, str]]:
    """Line and name of every parameter and annotated attribute of the package that is a plain number."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.arg):
            name, annotation = node.arg, node.annotation
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name, annotation = node.target.id, node.annotation
        else:
            continue
        if annotation is not None and re.fullmatch(r"(float|int)( \| None)?", ast.unparse(annotation)):
            yield node.lineno, name


def test_numbers_carry_their_unit_in_the_name() -> None:
    bare = [
        f"{relative(path)}:{line} {name}"
        for path in package_files()
        for line, name in numbers(path)
        if name.strip("_").lower().rpartition("_")[2] in QUANTITIES and not name.startswith("scale_")  # a factor has no unit
    ]
    assert not bare


def test_nothing_names_the_machine_it_was_written_on() -> None:
    # In two halves, so that this file passes its own test.
    paths = ["/wo" + "rk/", "/ro" + "ot/", "/tmp/" + "venv", "/opt/" + "pypi", "/opt/" + "wheels", "/ho" + "me/[a-z]", r"\." + "pyenv"]
    hosts = [
        "pypi" + r"\.org",
        "python" + r"hosted\.",
        "pytorch" + r"\.org/whl",
        "npmjs" + r"\.(org|com)",
        "debian" + r"\.org",
        "index" + "-url",
    ]
    pattern = re.compile("|".join(paths + hosts))
    found = []
    for path in tracked_files():
        if path.suffix in (".png", ".gif", ".jpg"):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if pattern.search(line):
                found.append(f"{relative(path)}:{number} {line.strip()}")
    assert not found


def test_the_licence_is_there_in_full() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "9. Accepting Warranty or Additional Liability." in text
