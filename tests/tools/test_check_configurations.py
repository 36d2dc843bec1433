"""tools/check_configurations.py: what it makes of two runs, and its table on the page."""

from dataclasses import replace
from pathlib import Path

import pytest

from megatron_energy.errors import UserError
from tests.session.launched import Done
from tests.session.small_job import make
from tests.source_tree import ROOT
from tests.tools.loading import load_tool

tool = load_tool("check_configurations")
LOG = "iteration 1/2 | lm loss: 5.5E+00 | grad norm: 1.2 |\niteration 2/2 | lm loss: 5.4E+00 | grad norm: 1.1 |\n"


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A run that left a plan."""
    folder = make(tmp_path_factory.mktemp("run"))
    return Done(0, LOG, "", folder)


def phased(done: Done, *phases: str) -> Done:
    kind = type("Phased", (Done,), {"phases": list(phases)})
    return kind(done.status, done.out, done.err, done.directory)  # type: ignore[no-any-return]


def test_runs_that_are_as_they_should_be(planned: Done) -> None:
    on = phased(planned, "baseline", "planned", "evaluation")
    assert tool.result(planned, on) == "plan, p2p overlap"
    given_up = replace(planned, out=tool.MAXIMUM + "no schedule\n" + LOG)
    assert tool.result(planned, given_up) == "measured only: no schedule"
    errors = "  File x\n[rank1]: AssertionError: only with a GPU | only so\nRuntimeError: gloo lost it\nrank 1 failed\n"
    stopped = replace(planned, status=1, err=errors)
    assert tool.result(stopped, stopped) == "does not run on a CPU: only with a GPU \\| only so"


def test_runs_that_are_not(planned: Done) -> None:
    failed = replace(planned, status=2, out="error: no such flag\n")
    assert tool.result(planned, failed) == "WRONG: exit status 2: error: no such flag"
    assert tool.result(planned, replace(planned, out=LOG.replace("1.1", "1.0"))) == "WRONG: losses or gradient norms differ"
    empty = replace(planned, out="")
    assert tool.result(empty, empty) == "WRONG: losses or gradient norms differ", "nothing compared is nothing shown"
    assert tool.result(planned, phased(planned, "baseline", "sweep")) == "WRONG: the last iteration is of phase sweep"


def test_arguments() -> None:
    ramp = tool.CONFIGURATIONS["batch size ramp-up"].words
    assert "0:8 3072:16" in ramp and "--global-batch-size" not in ramp and "--train-iters" not in ramp
    assert tool.CONFIGURATIONS["pipeline layout"].words[-3] == "Et*2|t*3|t*2|tL"


def test_the_page_has_a_row_for_every_configuration() -> None:
    page = Path(ROOT / "docs" / "configurations.md").read_text(encoding="utf-8")
    missing = [name for name in tool.CONFIGURATIONS if "| " + " | ".join(tool._key(name)) + " | " not in page]
    assert not missing
    assert "WRONG" not in page


def test_a_page_without_the_table_is_refused_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "check", lambda *_: pytest.fail("ten minutes of trainings, for nothing"))
    with pytest.raises(UserError, match=r"cannot read .*none\.md"):
        tool.main(["--write", str(tmp_path / "none.md")])
