"""The live switch's file."""

import os

import pytest

from megatron_energy.cli.main import main
from megatron_energy.errors import UserError
from megatron_energy.session.control import Control, write_control


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "iterations.jsonl").write_text("{}\n")
    return tmp_path


def test_drop_and_resume(run_dir):
    said: list[str] = []
    control = Control(run_dir, said.append)
    assert not control.dropped()
    write_control(run_dir, "drop")
    assert control.dropped() and control.dropped()
    write_control(run_dir, "resume")
    assert not control.dropped()
    write_control(run_dir, "drop")
    (run_dir / "control").unlink()
    assert not control.dropped()
    assert not said


def test_a_look_reads_the_file_only_when_it_changes(run_dir, monkeypatch):
    write_control(run_dir, "drop")
    control = Control(run_dir, print)
    assert control.dropped()
    monkeypatch.setattr(Control, "_read", lambda self: pytest.fail("read again"))
    assert all(control.dropped() for _ in range(10))


def test_a_new_process_finds_what_was_said_before(run_dir):
    write_control(run_dir, "drop")
    assert Control(run_dir, print).dropped()


def test_what_cannot_be_understood_changes_nothing_and_is_said_once(run_dir):
    said: list[str] = []
    control = Control(run_dir, said.append)
    write_control(run_dir, "drop")
    assert control.dropped()
    (run_dir / "control").write_text("stop it\n")
    assert control.dropped() and control.dropped()
    assert said == [f"{run_dir / 'control'} says 'stop it', neither drop nor resume: it changes nothing"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_file_that_cannot_be_written(run_dir):
    run_dir.chmod(0o500)
    with pytest.raises(UserError, match="cannot write"):
        write_control(run_dir, "drop")
    run_dir.chmod(0o700)


def test_the_commands(run_dir, capsys):
    assert main(["drop", str(run_dir)]) == 0
    assert (run_dir / "control").read_text() == "drop\n"
    said = "drop; maximum clocks from the next iteration on (emulated GPUs) or within seconds"
    assert said in capsys.readouterr().out
    assert main(["resume", str(run_dir)]) == 0
    assert (run_dir / "control").read_text() == "resume\n"


def test_a_folder_without_a_run(tmp_path, capsys):
    assert main(["drop", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"megatron-energy: no run in {tmp_path} (it has no iterations.jsonl): give the --energy-dir of a running job\n"
    )
    assert not (tmp_path / "control").exists()
