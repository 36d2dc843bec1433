import os
import subprocess
import sys

import pytest

from megatron_energy import __version__
from megatron_energy.cli import doctor_report
from megatron_energy.cli.main import main
from tests.cli.offline import Shell
from tests.source_tree import ROOT


def test_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    shell = Shell(capsys)
    assert shell.complaint() == "the following arguments are required: COMMAND (see megatron-energy --help)"
    assert "invalid choice: 'plans' (choose from" in shell.complaint("plans")


def test_version_and_help_load_no_numerics() -> None:
    code = "import sys\nfrom megatron_energy.cli.main import main\ntry:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
    report = "print('LOADED', *{name.partition('.')[0] for name in sys.modules})"
    for option in ("--version", "--help"):
        done = subprocess.run([sys.executable, "-c", code + report, option], cwd=ROOT, capture_output=True, text=True, check=True)
        text, _, loaded = done.stdout.rpartition("LOADED")
        assert set(loaded.split()).isdisjoint({"numpy", "scipy", "highspy", "rich", "pynvml"})
        assert (__version__ if option == "--version" else "replay") in text


def test_a_reader_that_goes_away_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "megatron_energy", "doctor", "--json", "--seconds", "0"]
    with os.fdopen(write, "wb") as closed:
        done = subprocess.run(command, cwd=ROOT, stdout=closed, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (141, "")


def test_ctrl_c_shows_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor_report, "collect", interrupt)
    assert main(["doctor"]) == 130
    assert capsys.readouterr() == ("", "")
