"""Checks this package on a real NVIDIA GPU, read-only: no clock, power limit or mode is ever changed.

    python tools/device_check.py [--json FILE] [--iterations 15] [--seconds 3]

Reads NVML, compares the energy counter with integrated power, trains a GPT of megatron-core on the first visible GPU with and
without hooks, events and a controller whose requests go nowhere, and compares times and losses. Needs torch with CUDA, nvidia-ml-py,
megatron-core and this package; takes less than four minutes. Every NVML function that does not only read is refused for the whole
process (megatron_energy/gpus/readonly.py).

Without a GPU the program itself can be tried; its figures then mean nothing:

    python -m megatron_energy.emulation --count 1 tools/device_check.py --cpu
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from device_findings import Finding, as_table
from device_nvml import nvml_findings, sensor_findings
from mistakes import told

from megatron_energy.errors import UserError
from megatron_energy.gpus.errors import GpuError, NoDriver
from megatron_energy.gpus.library import is_emulated, open_nvml
from megatron_energy.gpus.nvml import NvmlGpu
from megatron_energy.gpus.readonly import ReadingLibrary, read_only
from megatron_energy.gpus.visible import gpu_for_cuda_device

NO_GPU = "no NVIDIA driver here: run this on a GPU host (or, without one, try the program itself as its --help says)"


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures there")
    parser.add_argument("--iterations", type=int, default=15, help="training iterations of each kind (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="how long sensors are watched, idle and busy each (default: %(default)s)"
    )
    parser.add_argument("--cpu", action="store_true", help="try this program without CUDA: a tiny model on the CPU")
    args = parser.parse_args(argv)
    if args.iterations < 5:
        raise UserError(f"--iterations {args.iterations}: give 5 or more, for a median")
    if not 1 <= args.seconds <= 20:
        raise UserError(f"--seconds {args.seconds:g}: give 1 to 20")
    return args


def prepare_torch(cpu: bool) -> None:
    """Import torch, on CUDA or on the CPU shims. Raises UserError where that is not what the host has."""
    try:
        import torch
    except ModuleNotFoundError as error:
        raise UserError("torch is not installed: run this where the training runs") from error
    if cpu:
        from megatron_energy.megatron import cpu as shims

        shims.install()
    elif not torch.cuda.is_available():
        raise UserError("torch sees no CUDA device: run this on a GPU host, or try the program itself with --cpu")
    try:
        import megatron.core  # noqa: F401
    except ModuleNotFoundError as error:
        raise UserError("megatron-core is not installed: run this where the training runs") from error


def attempt(name: str, collect: Callable[[], list[Finding]]) -> list[Finding]:
    """A part's findings; what NVML or CUDA refuse is one of them, and the other parts go on."""
    try:
        return collect()
    except (GpuError, RuntimeError) as error:
        return [Finding(name, "failed", str(error).partition("\n")[0], ok=False)]


def collect(args: argparse.Namespace, gpu: NvmlGpu, guard: ReadingLibrary) -> list[Finding]:
    """All parts, one after another."""
    from device_training import busy, idle, training_findings

    findings = attempt("NVML", lambda: nvml_findings(gpu))
    findings += attempt("sensors, idle", lambda: sensor_findings(gpu, args.seconds, "idle", idle))
    findings += attempt("sensors, busy", lambda: sensor_findings(gpu, args.seconds, "busy", idle if args.cpu else busy))
    findings += attempt("training", lambda: training_findings(args.iterations, args.cpu))
    refused = ", ".join(sorted(set(guard.refused))) or "none was called"
    return [*findings, Finding("read-only", "functions refused", refused, ok=not guard.refused)]


def warning_of(args: argparse.Namespace) -> str:
    """What the figures are not, if they are not a real GPU's."""
    parts = ["NVML's figures are emulated"] if is_emulated() else []
    parts += ["times are those of a tiny model on the CPU and mean nothing"] if args.cpu else []
    return "; ".join(parts)


def run(argv: list[str] | None = None) -> int:
    """Do all checks; 1 if one of them failed. Raises UserError where they cannot be done."""
    args = parse(argv)
    try:
        open_nvml()
    except NoDriver as error:
        raise UserError(NO_GPU) from error
    with read_only() as guard:
        prepare_torch(args.cpu)
        gpu = gpu_for_cuda_device(0)
        findings = collect(args, gpu, guard)
        warning = warning_of(args)
    print(f"# Device check: {gpu_name(findings)}\n")
    print(f"{warning[0].upper()}{warning[1:]}.\n" if warning else "Nothing on the GPU was changed.\n")
    print(as_table(findings))
    if args.json is not None:
        plain: dict[str, Any] = {"warning": warning, "emulated": is_emulated(), "cpu": args.cpu, "checks": [f.plain() for f in findings]}
        args.json.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    return int(any(finding.ok is False for finding in findings))


def gpu_name(findings: list[Finding]) -> str:
    """The GPU's name, if it could be read."""
    return next((str(finding.value) for finding in findings if finding.name == "name"), "unknown GPU")


def main(argv: list[str] | None = None) -> int:
    """Run, with mistakes told in one line and exit status 2."""
    return told(lambda: run(argv))


if __name__ == "__main__":
    sys.exit(main())
