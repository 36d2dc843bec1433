"""The layers of the package: imports point downwards only, and nobody pays for what they do not use."""

import subprocess
import sys

import pytest

from tests.source_tree import PACKAGE, ROOT, Import, imports_of, modules, reach, third_party

LAYERS = [
    "cli",
    "megatron",
    "session",
    "cluster",
    "emulation",
    "clockd",
    "observe",
    "planning",
    "profiles",
    "pipeline",
    "parallel",
    "records",
    "gpus",
    "atomic",
    "errors",
]
"""From the top down. `python -m megatron_energy.run` belongs to the command line."""

TRAINING_PACKAGES = {"torch", "megatron", "triton", "transformer_engine", "apex"}


def layer(module: str) -> str | None:
    """The layer of a module; None for the package itself, which holds only its version."""
    parts = module.split(".")
    if len(parts) == 1:
        return None
    return "cli" if parts[1] in ("run", "__main__") else parts[1]


def package_of(found: Import) -> str:
    return found.target.partition(".")[0]


def test_every_module_belongs_to_a_layer() -> None:
    strangers = [module for module in modules() if layer(module) not in (None, *LAYERS)]
    assert not strangers, f"add their layer to LAYERS where it belongs: {strangers}"


def test_imports_point_downwards() -> None:
    upwards = []
    for module in modules():
        own = layer(module)
        lowest_allowed = LAYERS.index(own) if own is not None else len(LAYERS)
        for found in imports_of(module):
            other = layer(found.target) if package_of(found) == PACKAGE else None
            if other is not None and LAYERS.index(other) < lowest_allowed:
                upwards.append(str(found))
    assert not upwards


def test_only_the_megatron_layer_imports_torch_and_megatron() -> None:
    strangers = [
        str(found)
        for module in modules()
        if layer(module) != "megatron"
        for found in third_party(module)
        if package_of(found) in TRAINING_PACKAGES
        # TensorBoard's writer is torch's; it is loaded when a run writes, never before.
        and not (layer(module) == "observe" and found.lazy and found.target == "torch.utils.tensorboard")
    ]
    assert not strangers


def test_the_clock_daemon_is_small_enough_to_audit() -> None:
    """It runs as root: itself, the device interface, NVML's Python file and the standard library; nothing else."""
    starts = [module for module in modules() if layer(module) == "clockd"]
    reached = reach(starts)
    assert {layer(module) for module in reached} <= {"clockd", "gpus", "errors", None}
    assert [str(found) for module in reached for found in third_party(module) if package_of(found) != "pynvml"] == []


def test_settling_is_independent_of_the_planner() -> None:
    """What the emulation charges for a plan must not come from the code that made the plan."""
    starts = [module for module in modules() if module.startswith(f"{PACKAGE}.emulation.settle")]
    assert starts, "the emulation has no module that settles"
    assert {layer(module) for module in reach(starts)}.isdisjoint({"pipeline", "planning", "session"})


def loaded_after(code: str) -> set[str]:
    """Top-level packages that a new interpreter holds after running the code."""
    report = "\nimport sys; print('LOADED', *{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code + report], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("LOADED")[2].split())


def test_importing_the_package_loads_nothing_else() -> None:
    loaded = loaded_after("import megatron_energy")
    assert loaded.isdisjoint(TRAINING_PACKAGES | {"matplotlib", "numpy", "scipy", "highspy", "rich", "pynvml", "tensorboard"})


def test_no_module_outside_the_megatron_layer_loads_torch_or_plots() -> None:
    names = sorted(name for name in modules() if layer(name) != "megatron" and not name.endswith("__main__"))
    loaded = loaded_after("import importlib\n" + "".join(f"importlib.import_module({name!r})\n" for name in names))
    assert loaded.isdisjoint(TRAINING_PACKAGES | {"matplotlib", "tensorboard"})


@pytest.mark.parametrize("arguments", [["--help"], ["plan", "--help"], ["doctor", "--json"]])
def test_offline_commands_load_neither_torch_nor_plots(arguments: list[str]) -> None:
    code = f"import megatron_energy.cli.main as cli\ntry:\n    cli.main({arguments!r})\nexcept SystemExit:\n    pass"
    assert loaded_after(code).isdisjoint(TRAINING_PACKAGES | {"matplotlib", "tensorboard"})
