"""The outcome of every NVML error in every function that the package calls, as a Markdown table.

    python tools/check_nvml_errors.py

On emulated GPUs; the operations and what counts as a mistake are in tests/gpus/error_table.py.
"""

import argparse
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from megatron_energy.emulation.faults import inject
from tests.emulated_gpus import EmulatedNode, emulated_node
from tests.gpus.error_table import ERRORS, OPERATIONS, faults_of, functions_used, outcome, prepare

Cells = dict[tuple[str, str], dict[str, list[str]]]
"""(function, operation) -> outcome -> errors."""


def outcomes(node: EmulatedNode) -> Cells:
    """Run everything. Raises AssertionError for a wrong number."""
    found: Cells = defaultdict(lambda: defaultdict(list))
    for name, operation in OPERATIONS.items():
        for function in sorted(functions_used(operation, node)):
            for error in ERRORS:
                for fault in faults_of(function, error):
                    expected = operation(node).value
                    with inject(fault):
                        kind = outcome(operation, node, expected).kind
                    found[function + (" (one field)" if fault.field else ""), name][kind].append(error.removeprefix("NVML_ERROR_"))
    return found


LEGEND = """`same`: not affected. `degrades`: goes on without something, and says why. `raised`: one of our exceptions, in one line:
NoPermission (NO_PERMISSION), NotSupported (NOT_SUPPORTED, FUNCTION_NOT_FOUND), GpuLost (GPU_IS_LOST, RESET_REQUIRED), NoDriver
(UNINITIALIZED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND), NotFound (NOT_FOUND), GpuError (all others). `controller` stops for the first
four kinds and after five failures in a row, and retries raises otherwise.
"""


def ends_in_words(ends: dict[str, list[str]]) -> str:
    """The commonest outcome stands for all errors that are not named."""
    grouped: dict[str, list[str]] = defaultdict(list)
    for kind, errors in ends.items():
        grouped[kind if kind in ("same", "degrades") else "raised"].extend(errors)
    ordered = sorted(grouped.items(), key=lambda item: -len(item[1]))
    parts = [f"{ordered[0][0]} ({len(ordered[0][1])} errors)"]
    return "; ".join([*parts, *(f"{kind}: {', '.join(sorted(set(errors)))}" for kind, errors in ordered[1:])])


def rows(found: Cells) -> list[str]:
    """One line per function and outcome; operations with the same outcome share it."""
    merged: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (function, operation), ends in sorted(found.items()):
        merged[function, ends_in_words(ends)].append(operation)
    return [f"| {function} | {', '.join(operations)} | {words} |" for (function, words), operations in merged.items()]


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False).parse_args(argv)
    with tempfile.TemporaryDirectory() as folder, emulated_node(Path(folder)) as node:
        prepare(node)
        found = outcomes(node)
    print(LEGEND)
    print("\n".join(["| NVML function | operation | outcome |", "|---|---|---|", *rows(found)]))
    print(f"\n{sum(len(errors) for ends in found.values() for errors in ends.values())} cases; no wrong number, no other exception")
    return 0


if __name__ == "__main__":
    sys.exit(main())
