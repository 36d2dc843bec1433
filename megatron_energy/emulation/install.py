"""Put the emulated libnvidia-ml under pynvml.

Environment variables say what to emulate, so that all processes of a node agree::

    MEGATRON_ENERGY_EMULATED=a100-sxm4-80gb:8       model and number of GPUs
    MEGATRON_ENERGY_EMULATED_DIR=/some/directory    where the nodes' state files lie
    MEGATRON_ENERGY_EMULATED_FAULTS=[...]           what goes wrong: a JSON list of rules, or {"seed": 1, "rules": [...]}
"""

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pynvml

from megatron_energy.emulation.catalog import load
from megatron_energy.emulation.fault_rules import rule_from_plain
from megatron_energy.emulation.faults import Faults
from megatron_energy.emulation.gpu import EmulatedGpu
from megatron_energy.emulation.nvml import EmulatedNvml
from megatron_energy.emulation.state import NodeState, TimeSource, state_path
from megatron_energy.errors import UserError

VARIABLE = "MEGATRON_ENERGY_EMULATED"
DIRECTORY_VARIABLE = "MEGATRON_ENERGY_EMULATED_DIR"
FAULTS_VARIABLE = "MEGATRON_ENERGY_EMULATED_FAULTS"
DEFAULT_COUNT = 8


def install(
    specification: str,
    directory: Path | None = None,
    *,
    time_source: TimeSource = "wall",
    node: str | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> NodeState:
    """Give this process the emulated GPUs of its node, creating the node where it does not exist yet.

    Args:
        specification: catalog model and number of GPUs, ``a100-sxm4-80gb:8``; the number may be missing (8).
        directory: where the state files of nodes lie; default: one per user, model and number in the temporary directory.
        time_source: of a node that is created; an existing node keeps its own.
        node: name of the node; default: Slurm's, else the host's.
        clock: wall clock in s, common to all processes of the node.
        sleep: how a request waits for the driver (s).

    Raises UserError for an unknown model, for an existing node with other GPUs, and when NVML is already in use in this
    process: emulated and real GPUs must not be mixed.
    """
    model, count = parse_specification(specification)
    path = state_path(directory or default_directory(model, count), node)
    library = pynvml.nvmlLib
    if isinstance(library, EmulatedNvml) and library.node.path == path.resolve():
        return library.node
    if library is not None:
        raise UserError("NVML is already initialised in this process: emulate GPUs before anything calls nvmlInit, in a new process")
    state = NodeState.create(path, model, count, node=node, time_source=time_source, replace=False)
    if (state.model, state.count) != (model, count):
        found, wanted = f"{state.count} x {state.model}", f"{count} x {model}"
        raise UserError(f"{path} holds {found}, not {wanted}: remove it or set {DIRECTORY_VARIABLE} to another directory")
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml.nvmlLib = EmulatedNvml([EmulatedGpu(state, index, clock, sleep) for index in range(count)])
    return state


def install_from_environment(environment: Mapping[str, str] | None = None) -> NodeState | None:
    """Install what ``MEGATRON_ENERGY_EMULATED`` asks for; None when it asks for nothing. Raises as :func:`install`."""
    environment = os.environ if environment is None else environment
    specification = environment.get(VARIABLE)
    if not specification:
        return None
    directory = environment.get(DIRECTORY_VARIABLE)
    faults = parse_faults(environment.get(FAULTS_VARIABLE) or "[]")
    node = install(specification, Path(directory) if directory else None)
    highest = -1 if faults is None else faults.highest_gpu
    if highest >= node.count:
        raise UserError(f"{FAULTS_VARIABLE} names GPU {highest}, but there are {node.count} (0 to {node.count - 1})")
    if faults is not None and isinstance(pynvml.nvmlLib, EmulatedNvml):
        pynvml.nvmlLib.faults = faults
    return node


def uninstall() -> None:
    """Take the emulated library away again; the node's state stays. Without one installed nothing happens."""
    if isinstance(pynvml.nvmlLib, EmulatedNvml):
        pynvml.nvmlLib.node.close()
        pynvml.nvmlLib = None
        pynvml._nvmlGetFunctionPointer_cache.clear()


def parse_specification(specification: str) -> tuple[str, int]:
    """``"a100-sxm4-80gb:8"`` -> (catalog key, number of GPUs). Raises UserError."""
    key, colon, number = specification.partition(":")
    if colon and not number.isdecimal():
        raise UserError(f"{VARIABLE}={specification}: write it as MODEL:NUMBER, for example a100-sxm4-80gb:8")
    return load(key).key, int(number) if colon else DEFAULT_COUNT


def parse_faults(text: str) -> Faults | None:
    """What :data:`FAULTS_VARIABLE` asks for (see :mod:`megatron_energy.emulation.faults`); None for no rule. Raises UserError."""
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{FAULTS_VARIABLE} is not JSON ({error}): write a list of rules") from error
    rules, seed = (plain.get("rules"), plain.get("seed", 0)) if isinstance(plain, dict) else (plain, 0)
    known = not isinstance(plain, dict) or plain.keys() <= {"rules", "seed"}
    listed = isinstance(rules, list) and all(isinstance(rule, dict) for rule in rules)
    if not known or not listed or not isinstance(seed, int):
        raise UserError(f'{FAULTS_VARIABLE}: write a list of rules, or {{"seed": 1, "rules": [...]}}')
    return Faults(tuple(rule_from_plain(rule) for rule in rules), seed) if rules else None


def default_directory(model: str, count: int) -> Path:
    """Where nodes lie when nobody says so."""
    return Path(tempfile.gettempdir()) / f"megatron-energy-{os.getuid()}" / f"{model}-{count}"
