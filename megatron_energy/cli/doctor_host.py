"""Doctor's findings about the host apart from its GPUs: Slurm, and the software that training needs.

Packages are looked up by their metadata and files; none of them is imported.
"""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, TypeAlias

Status: TypeAlias = Literal["ok", "note", "off"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Attributes:
        topic: what it is about.
        status: ``ok``; ``note``: works, but worth knowing; ``off``: something is not possible.
        found: what was found.
        consequence: what a run does about it, and why.
    """

    topic: str
    status: Status
    found: str
    consequence: str


def host_findings(environment: Mapping[str, str]) -> list[Finding]:
    """Findings about Slurm and the software."""
    findings = [slurm_finding(environment), torch_finding(), megatron_finding(), transformer_engine_finding(), apex_finding()]
    return [finding for finding in [*findings, pynvml_finding()] if finding is not None]


def slurm_finding(environment: Mapping[str, str]) -> Finding | None:
    """Slurm's own clock request (``--gpu-freq``), which would compete with ours; None outside Slurm."""
    if "SLURM_JOB_ID" not in environment and "SLURM_GPU_FREQ" not in environment:
        return None
    wanted = environment.get("SLURM_GPU_FREQ")
    if wanted is None:
        return Finding("Slurm", "ok", f"job {environment.get('SLURM_JOB_ID')}, no --gpu-freq", "Slurm leaves the clocks alone")
    return Finding(
        "Slurm",
        "note",
        f"--gpu-freq {wanted}",
        "Slurm sets clocks for this job, and a plan would override them: leave --gpu-freq out of runs with --energy-policy",
    )


def installed_version(distribution: str) -> str | None:
    """Version of an installed distribution, or None."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def package_folder(module: str) -> Path | None:
    """Folder of an importable top-level package, or None; nothing is imported."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def torch_finding() -> Finding:
    """Whether torch is there."""
    if package_folder("torch") is None:
        return Finding("torch", "off", "not installed", "no training here; planning and simulation work without it")
    found = installed_version("torch") or "of unknown version"
    if found.endswith("+cpu"):
        return Finding("torch", "note", found, "a build for the CPU: no training on GPUs, but with the launcher's --nproc")
    return Finding("torch", "ok", found, "training is possible")


def megatron_finding() -> Finding:
    """Whether Megatron is there, from a package or a checkout on the path."""
    folder, found = package_folder("megatron"), installed_version("megatron-core")
    if found is None and (folder is None or not (folder / "core").is_dir()):
        return Finding("megatron-core", "off", "not installed", "no training here; planning and simulation work without it")
    training = folder is not None and (folder / "training").is_dir()
    consequence = "hooks go onto the installed code, which stays as it is"
    if not training:
        consequence += "; megatron.training is missing, so only scripts with a loop of their own run"
    return Finding("megatron-core", "ok", found or f"a checkout in {folder}", consequence)


def transformer_engine_finding() -> Finding:
    """Whether Transformer Engine is there."""
    if package_folder("transformer_engine") is None:
        return Finding("transformer_engine", "note", "not installed", "Megatron needs --transformer-impl local")
    return Finding("transformer_engine", "ok", installed_version("transformer_engine") or "of unknown version", "no influence on us")


def apex_finding() -> Finding:
    """Whether apex is there, and whether it is NVIDIA's: the package of that name in the public index is not."""
    folder = package_folder("apex")
    if folder is None:
        return Finding("apex", "ok", "not installed", "Megatron then uses torch's optimizers")
    if not (folder / "multi_tensor_apply").is_dir():
        return Finding("apex", "note", "not NVIDIA's apex", "an unrelated package of the same name: uninstall it, Megatron would import it")
    return Finding("apex", "ok", installed_version("apex") or "of unknown version", "no influence on us")


def pynvml_finding() -> Finding:
    """The Python binding of NVML."""
    found, shim = installed_version("nvidia-ml-py"), installed_version("pynvml")
    if found is None:
        return Finding(
            "nvidia-ml-py", "note", "pynvml is there, but not from nvidia-ml-py", "install nvidia-ml-py: other bindings are out of date"
        )
    if shim is not None:
        return Finding(
            "nvidia-ml-py", "note", f"{found}, and the deprecated package pynvml {shim}", "uninstall pynvml: it may hide the real one"
        )
    return Finding("nvidia-ml-py", "ok", found, "NVML is called through it")
