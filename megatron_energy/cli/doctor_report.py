"""Doctor's report: collected from NVML and the host, printed as text or JSON."""

import os
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from megatron_energy.cli.doctor_gpus import GpuFacts, gpu_findings, read_gpu, silent_finding
from megatron_energy.cli.doctor_host import Finding, host_findings
from megatron_energy.emulation.install import install_from_environment
from megatron_energy.gpus.errors import GpuError, NoDriver
from megatron_energy.gpus.library import driver_version, is_emulated, nvml_version
from megatron_energy.gpus.visible import all_gpus

_STYLES = {"ok": "green", "note": "yellow", "off": "red"}


@dataclass
class Report:
    """All findings about one host."""

    emulated: bool = False
    driver: str | None = None
    gpus: list[GpuFacts] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def collect(watch_s: float) -> Report:
    """Look at this host; ``watch_s``: seconds to watch the sensors of one GPU, 0 for not at all.

    Raises UserError when emulated GPUs are asked for that cannot be had.
    """
    install_from_environment()
    report, silent = Report(), dict[int, str]()
    try:
        gpus = all_gpus(silent)
        report.driver, report.emulated = driver_version(), is_emulated()
        found = f"{report.driver}, NVML {nvml_version()}"
        follows = "every figure about GPUs below is emulated" if report.emulated else "GPUs are read through NVML"
        report.findings.append(Finding("NVIDIA driver", "note" if report.emulated else "ok", found, follows))
    except (NoDriver, GpuError) as error:
        gpus = []
        report.findings.append(Finding("NVIDIA driver", "off", "none that works", str(error)))
    report.findings += silent_finding(silent)
    report.gpus = [read_gpu(gpu) for gpu in gpus]
    if gpus:
        report.findings += gpu_findings(gpus, report.gpus, watch_s, os.environ)
    report.findings += host_findings(os.environ)
    return report


def as_json(report: Report) -> dict[str, Any]:
    """The report as plain types: ``emulated``, ``driver``, ``gpus`` (a list) and ``findings`` (a list)."""
    return {
        "emulated": report.emulated,
        "driver": report.driver,
        "gpus": [asdict(gpu) for gpu in report.gpus],
        "findings": [asdict(finding) for finding in report.findings],
    }


def print_text(report: Report) -> None:
    """Print the report as text: a table of the GPUs, then each finding with its consequence."""
    console = Console(highlight=False)
    title = "GPUs of this host" + (" (emulated)" if report.emulated else "")
    if report.gpus:
        gpus = Table(title=title, title_justify="left", show_edge=False)
        for column in ("#", "UUID", "SM MHz", "W"):
            gpus.add_column(column, justify="left" if column == "UUID" else "right", no_wrap=True)
        for gpu in report.gpus:
            gpus.add_row(_rounded(gpu.index), gpu.uuid, _rounded(gpu.sm_clock_mhz), _rounded(gpu.power_w))
        console.print(gpus)
        console.print()
    console.print("What a run can do here, and why", style="italic")
    findings = Table.grid(padding=(0, 2, 0, 0))
    for finding in report.findings:
        mark = f"[{_STYLES[finding.status]}]{finding.status}[/]"
        findings.add_row(mark, finding.topic, Text.assemble(finding.found, "\n", (f"-> {finding.consequence}", "dim")))
    console.print(findings)


def _rounded(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f}"
