"""Real ranks on a patched copy of megatron-core: they record and train as on the stock one, and the patch leaves no trace."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from megatron_energy.megatron import patching
from megatron_energy.pipeline.order import operations, roles
from tests.megatron.launching import launch, needs_megatron
from tests.megatron.test_recorded_runs import OTHER_CORES, schedule_of

pytestmark = needs_megatron

RANKS = 4
TRAINING = ["--pipeline", "4", "--microbatches", "8", "--layers", "8", "--record", "--steps", "2"]
CASES = {
    "interleaved": [*TRAINING, "--virtual", "2", "--overlap", "--evaluate", "1"],
    "plain": [*TRAINING, "--overlap-grad"],
    "no-pipeline": ["--microbatches", "2", "--layers", "2", "--record", "--steps", "1", "--overlap-grad"],
}
Files = dict[Path, tuple[int, bytes]]
Reports = dict[str, list[dict[str, Any]]]


def copy_of_core(core: Path | None, site: Path) -> Path:
    """A megatron-core (None: the installed one), in a folder of its own."""
    shutil.copytree((core or patching.installed_site()) / "megatron" / "core", site / "megatron" / "core")
    # megatron is a namespace package: without this file, parts could come from the other one.
    (site / "megatron" / "__init__.py").write_text('"""megatron-core alone."""\n')
    return site


def files(site: Path) -> Files:
    """Mode and content of every file but Python's own caches."""
    return {path: (path.stat().st_mode, path.read_bytes()) for path in site.rglob("*") if path.is_file() and path.suffix != ".pyc"}


def train(folder: Path, core: Path | None) -> Reports:
    folder.mkdir()
    (folder / "cases.json").write_text(json.dumps(CASES))
    script = Path(__file__).with_name("patched_gpt.py")
    done = launch("--nproc", str(RANKS), script, "--cases", folder / "cases.json", "--out", folder, core=core)
    assert done.returncode == 0, done.stderr[-4000:]
    return {name: [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(RANKS)] for name in CASES}


def has_patch(core: Path) -> bool:
    return patching.core_version(core) in [patch.version for patch in patching.all_patches()]


@pytest.fixture(scope="module", params=[None, *filter(has_patch, OTHER_CORES)], ids=lambda core: core.name if core else "installed")
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """Trainings on the stock and on the patched copy; the files before the patch came and after it has gone."""
    folder = tmp_path_factory.mktemp("patched")
    site = copy_of_core(request.param, folder / "site")
    if not has_patch(site):
        pytest.skip(f"there is no patch for megatron-core {patching.core_version(site)}")
    before = files(site)
    stock = train(folder / "stock", request.param)
    assert patching.apply(patching.find(site))
    patched = train(folder / "patched", site)
    assert patching.revert(patching.find(site))
    return {"stock": stock, "patched": patched, "before": before, "after": files(site)}


def test_the_tree_is_as_it_was_to_the_byte(trained: Mapping[str, Any]) -> None:
    assert len(trained["before"]) > 100
    assert trained["before"] == trained["after"]


@pytest.mark.parametrize("name", CASES)
def test_the_patched_run_records_and_trains_as_the_hooked_one(trained: Mapping[str, Any], name: str) -> None:
    """Losses, gradient norms, parameters, facts, and every recorded step, with a clock request at every transition point."""
    for stock, patched in zip(trained["stock"][name], trained["patched"][name], strict=True):
        assert {key for key in stock if stock[key] != patched[key]} == {"points", "wrapped"}
        assert stock["broken"] == [] and stock["programs"]
        assert {step[0] for step in stock["programs"][0]["steps"]} >= {"Compute", "ClockRequest", "GradSync", "Optimizer"}


@pytest.mark.parametrize("name", CASES)
def test_a_patched_schedule_needs_no_wrapped_function(trained: Mapping[str, Any], name: str) -> None:
    for stock, patched in zip(trained["stock"][name], trained["patched"][name], strict=True):
        assert (stock["wrapped"], stock["points"]) == (["forward_step", "backward_step"], [])
        assert (patched["wrapped"], len(patched["points"]) > 0) == ([], True)


@pytest.mark.parametrize("name", CASES)
def test_the_patch_tells_role_chunk_and_microbatch_of_every_operation(trained: Mapping[str, Any], name: str) -> None:
    for report in trained["patched"][name]:
        expected: list[list[Any]] = []
        for one in report["programs"]:
            schedule, stage = schedule_of(report, forward_only=one["evaluation"]), report["facts"][0]["stage"]
            for operation, role in zip(operations(schedule, stage), roles(schedule, stage), strict=True):
                expected += [[operation.kind, role, operation.chunk, operation.microbatch, side] for side in ("begin", "end")]
        assert report["points"] == expected
