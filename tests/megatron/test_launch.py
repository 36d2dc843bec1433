"""The launcher's command line."""

import contextlib
import errno
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from megatron_energy.cli import launch as launcher
from megatron_energy.errors import UserError
from megatron_energy.megatron import runtime
from megatron_energy.megatron.folders import require_writable
from megatron_energy.megatron.preload import imported_modules
from megatron_energy.megatron.stopping import Stopping
from megatron_energy.session.options import FLAGS
from tests.megatron.launching import REPOSITORY, launch, needs_megatron
from tests.tools.loading import load_tool


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("import sys, os\nimport beside\nprint(sys.argv, __name__, beside.HERE)\n")
    (tmp_path / "beside.py").write_text("HERE = 'beside the script'\n")
    return path


@pytest.fixture(autouse=True)
def without_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


def test_arguments_of_the_launcher_come_before_the_script(script: Path) -> None:
    found = launcher.parse(["--nproc", "4", str(script), "--nproc", "7", "--energy-policy", "off", "--", "--energy-x", "1"])
    assert (found.nproc, found.cpu, found.script) == (4, True, script)
    assert found.arguments == ["--nproc", "7", "--", "--energy-x", "1"]
    assert found.options.policy == "off"


def test_without_nproc_nothing_is_emulated(script: Path) -> None:
    found = launcher.parse([str(script)])
    assert (found.nproc, found.cpu, found.force_cpu, found.arguments) == (None, False, False, [])
    assert launcher.parse(["--cpu", str(script)]).cpu
    assert launcher.parse(["--force-cpu", str(script)]).cpu


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no script given"),
        (["--energy-policy", "off"], "no script given"),
        (["nowhere.py"], "script nowhere.py not found: give the path of a Python file"),
        (["--nproc", "x", "SCRIPT"], "argument --nproc: invalid int value: 'x'"),
        (["--nproc", "0", "SCRIPT"], "--nproc 0: must be a whole number >= 1"),
        (["--nprocs", "4", "SCRIPT"], "unrecognized arguments: --nprocs"),
        (["--nnodes", "2", "--node-rank", "2", "SCRIPT"], "--nnodes 2 --node-rank 2: the rank must be in 0..nnodes-1"),
        (["--nnodes", "2", "--nproc", "4", "SCRIPT"], "--nnodes needs --nproc, and MASTER_ADDR and MASTER_PORT"),
        (["--nproc", "2", ""], "script with an empty name not found"),
        (["--nproc", "2", str(REPOSITORY / "README.md")], "README.md is no Python file that this Python can run (line "),
        (["--energy-policy", "all", "SCRIPT"], "--energy-policy all: choose one of"),
    ],
)
def test_mistakes_are_one_line_and_status_2(script: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert launcher.main([str(script) if word == "SCRIPT" else word for word in words]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("port", ["abc", "0", "65536", "-1", ""])
def test_a_port_that_is_none(script: Path, monkeypatch: pytest.MonkeyPatch, port: str) -> None:
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", port)
    with pytest.raises(UserError, match=f"MASTER_PORT is '{port}': give a TCP port"):
        launcher.parse(["--nproc", "2", "--nnodes", "2", str(script)])


def test_no_ranks_within_a_rank(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(UserError, match="--nproc under torchrun"):
        launcher.parse(["--nproc", "2", str(script)])


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        launcher.main(["--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert "--force-cpu" in shown
    ours, emulated = shown.index("megatron-energy:"), shown.index("megatron-energy, emulated GPUs:")
    assert all(flag.option in shown for flag in FLAGS)
    assert ours < shown.index("--energy-slowdown") < emulated < shown.index("--energy-emulated-gpu")


@pytest.mark.parametrize("option", ["--logs", "--tensorboard-dir"])
def test_folders_that_cannot_be_written(script: Path, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    words = {"--logs": ["--logs", str(tmp_path / "file" / "x"), str(script)]}.get(
        option, [str(script), option, str(tmp_path / "file" / "x")]
    )
    assert launcher.main(["--nproc", "2", *words]) == 2
    err = capsys.readouterr().err
    assert err == f"error: cannot write to {tmp_path}/file/x (Not a directory): choose another {option}\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_seen_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: open("/dev/full", "wb"))  # noqa: SIM115
    with pytest.raises(UserError, match=r"cannot write to .* \(No space left on device\): choose another"):
        require_writable(tmp_path, "choose another")


def test_no_temporary_folder(script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(prefix: str) -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    with (
        pytest.raises(UserError, match=r"\(No usable temporary directory found\): give --logs DIR"),
        launcher._folder_of_logs(launcher.parse(["--nproc", "2", str(script)])),
    ):
        pass


def test_ctrl_c_before_the_script_runs_shows_no_traceback(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(argv: Sequence[str]) -> launcher.Launch:
        raise KeyboardInterrupt

    monkeypatch.setattr(launcher, "prepare", interrupt)
    assert launcher.main([str(script)]) == 130
    assert capsys.readouterr() == ("", "")


def test_ctrl_c_that_an_import_swallows_is_not_lost(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def swallow(argv: Sequence[str]) -> launcher.Launch:
        with contextlib.suppress(BaseException):  # as `try: import apex; except: ...` does
            signal.raise_signal(signal.SIGINT)
        return launcher.parse(argv)

    monkeypatch.setattr(launcher, "prepare", swallow)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        assert launcher.main([str(script)]) == 130
        assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


@needs_megatron
@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this host has an NVIDIA driver")
@pytest.mark.parametrize(("flags", "status"), [([], 1), (["--energy-device", "emulated"], 2)])
def test_a_host_without_cuda_needs_an_option(tmp_path: Path, flags: list[str], status: int) -> None:
    script = tmp_path / "s.py"
    script.write_text("import torch\nassert torch.cuda.is_available(), 'Megatron requires CUDA.'\n")
    done = launch(script, *flags, "--tensorboard-dir", tmp_path)
    assert done.returncode == status
    assert done.stderr.splitlines()[-1].startswith("error: torch finds no CUDA device here, which Megatron needs: add --nproc N")
    assert ("Megatron requires CUDA." in done.stderr) is (flags == [])


@needs_megatron
def test_a_signal_from_torchrun_closes_the_session(tmp_path: Path) -> None:
    """A rank that was started by somebody else, without a handler of its script's."""
    script = tmp_path / "s.py"
    script.write_text(
        "import atexit, os, signal, time\natexit.register(print, 'closed')\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(30)\n"
    )
    done = launch("--cpu", script, "--energy-device", "emulated", "--energy-dir", tmp_path / "energy")
    assert (done.returncode, done.stdout) == (128 + signal.SIGTERM, "closed\n"), done.stderr


@needs_megatron
def test_a_script_without_megatrons_schedules_is_told_that_nothing_was_measured(tmp_path: Path) -> None:
    script = tmp_path / "s.py"
    script.write_text("import sys\nprint('done')\nsys.exit()\n")
    done = launch("--cpu", script, "--energy-device", "emulated", "--energy-dir", tmp_path / "energy")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "done\nmegatron-energy: no training schedule of Megatron was called: nothing was measured\n"


@pytest.mark.parametrize(
    ("end", "nproc", "told"),
    [
        ("", [], ["script", "ended", "closed"]),
        ("raise SystemExit(0)", [], ["script", "ended", "closed"]),
        ("raise SystemExit(143)", [], ["script", "closed"]),
        ("raise KeyboardInterrupt", [], ["script", "closed"]),
        ("1 / 0", [], ["script", "closed"]),
        ("", ["--nproc", "2"], ["script", "ended"]),
    ],
)
def test_the_session_closes_before_the_interpreter_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, nproc: list[str], told: list[str]
) -> None:
    """Python 3.12 starts no thread at its shutdown, and TensorBoard's writer for the report's row needs one."""
    found: list[str] = []
    energy = SimpleNamespace(script_ended=lambda: found.append("ended"), at_exit=lambda: found.append("closed"))
    monkeypatch.setattr(runtime, "start", lambda options: energy)
    monkeypatch.setattr(sys, "found", found, raising=False)
    monkeypatch.setattr(sys, "argv", sys.argv)
    script = tmp_path / "script.py"
    script.write_text(f"import sys\nsys.found.append('script')\n{end}\n")
    with contextlib.suppress(SystemExit, KeyboardInterrupt, ZeroDivisionError):
        launcher.run_script(launcher.parse([*nproc, str(script), "--energy-policy", "measure"]))
    assert found == told


def test_in_process_the_script_runs_as_python_would_run_it(script: Path) -> None:
    done = launch(script, "--energy-policy", "off", "--lr", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{[str(script), '--lr', '1']} __main__ beside the script\n"


def test_without_our_flags_nothing_but_the_launcher_is_imported(tmp_path: Path) -> None:
    script = tmp_path / "bare.py"
    script.write_text(
        "import sys\nprint([m for m in ('torch', 'megatron', 'pynvml', 'numpy', 'wrapt') if m in sys.modules])\n"
        "print(*sorted(m for m in sys.modules if m.partition('.')[0] == 'megatron_energy'))\n"
    )
    done = launch(script)
    assert done.returncode == 0, done.stderr
    foreign, ours = done.stdout.splitlines()
    assert foreign == "[]" and set(ours.split()) == set(load_tool("check_dropin").LAUNCHER)


@needs_megatron
@pytest.mark.parametrize("nproc", [["--nproc", "2"], []])
def test_options_that_cannot_be_met_are_one_line_whatever_the_number_of_ranks(script: Path, nproc: list[str]) -> None:
    done = launch(*nproc, script, "--energy-device", "emulated", "--energy-emulated-gpu", "no-such-gpu")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and "no-such-gpu" in done.stderr and done.stderr.count("\n") == 1
    assert done.stdout == ""


@needs_megatron
def test_forked_ranks_share_a_process_group_on_shims(tmp_path: Path) -> None:
    script = tmp_path / "sum.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "x = torch.full((1,), float(dist.get_rank() + 1), device='cuda')\n"
        "dist.all_reduce(x)\n"
        "print('sum', x.item(), torch.cuda.device_count(), torch.get_num_threads())\n"
    )
    done = launch("--nproc", "3", "--logs", tmp_path / "logs", script)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "sum 6.0 1 1\n"
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["rank-0.log", "rank-1.log"]
    assert (tmp_path / "logs" / "rank-0.log").read_text().endswith("sum 6.0 1 1\n")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch.nn as nn, os\nfrom megatron.core import mpu\n", ["torch.nn", "megatron.core", "megatron.core.mpu"]),
        ("def f():\n    from megatron.training import pretrain\nfrom . import x\n", ["megatron.training", "megatron.training.pretrain"]),
        ("import torchvision, numpy\n", ["numpy"]),
        ("this is no Python", []),
    ],
)
def test_what_a_script_imports_is_read_without_running_it(tmp_path: Path, source: str, expected: list[str]) -> None:
    (tmp_path / "s.py").write_text(source)
    assert imported_modules(tmp_path / "s.py") == expected


def test_run_directory_holds_the_logs_when_a_policy_is_active(script: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from megatron_energy.megatron import fork, preload, runtime

    seen: list[fork.Ranks] = []

    def run(ranks: fork.Ranks, main: Callable[[], None]) -> int:
        seen.append(ranks)
        return 0

    monkeypatch.setattr(fork, "run", run)
    monkeypatch.setattr(preload, "preload", lambda *_: None)
    monkeypatch.setattr(runtime, "check", lambda options: None)
    measured = ["--energy-policy", "measure", "--energy-dir", str(tmp_path / "here")]
    for words in ([str(script), *measured], [str(script)], ["--logs", str(tmp_path / "own"), str(script)]):
        assert launcher._fork(launcher.parse(["--nproc", "2", *words]), 2, Stopping()) == 0
    active, plain, own = (ranks.logs for ranks in seen)
    assert active == tmp_path / "here" / "logs"
    assert own == tmp_path / "own"
    assert not plain.exists(), "kept nowhere"
