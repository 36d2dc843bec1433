"""Ranks as forks: environment, output, exit statuses, signals. The parents here are small programs without torch."""

import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from megatron_energy.megatron import fork_report
from megatron_energy.megatron.fork import free_port
from tests.megatron.launching import REPOSITORY

PARENT = """
import os, sys, time, signal, atexit
from pathlib import Path
from megatron_energy.errors import UserError
from megatron_energy.megatron import fork

logs = Path(sys.argv[1])
ranks = fork.Ranks(count={count}, world_size={world}, first={first}, address="127.0.0.1", port=1234, logs=logs)

def main():
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
{body}

sys.exit(fork.run(ranks, main))
"""


class Parent:
    """Runs ``body`` in every rank."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs = folder / "logs"

    def start(self, body: str, count: int = 3, world: int | None = None, first: int = 0) -> subprocess.Popen[str]:
        source = PARENT.format(count=count, world=world or count, first=first, body=textwrap.indent(textwrap.dedent(body), "    "))
        return subprocess.Popen(
            [sys.executable, "-c", source, self.logs], cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, body: str, count: int = 3, world: int | None = None, first: int = 0) -> tuple[int, str, str]:
        process = self.start(body, count, world, first)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def log(self, rank: int) -> str:
        return (self.logs / f"rank-{rank}.log").read_text()


@pytest.fixture
def parent(tmp_path: Path) -> Parent:
    return Parent(tmp_path)


def test_ranks_have_the_environment_of_torchrun(parent: Parent) -> None:
    names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"]
    code, out, err = parent.run(f"print([os.environ[n] for n in {names}])", count=2, world=4, first=2)
    assert (code, err) == (0, "")
    assert parent.log(2).strip() == str(["2", "4", "0", "2", "1", "127.0.0.1", "1234"])
    assert out.strip() == str(["3", "4", "1", "2", "1", "127.0.0.1", "1234"]), "the last rank's output is shown"


def test_output_of_stdout_and_stderr_is_kept_per_rank(parent: Parent) -> None:
    code, out, err = parent.run("print('out', rank); print('err', rank, file=sys.stderr); os.system('echo child')")
    assert code == 0
    assert sorted(out.splitlines()) == ["child", "out 2"] and err == "err 2\n"
    assert sorted(parent.log(0).splitlines()) == ["child", "err 0", "out 0"]


def test_exit_functions_run_in_the_ranks(parent: Parent) -> None:
    code, out, _ = parent.run("atexit.register(print, 'flushed', rank)")
    assert (code, out) == (0, "flushed 2\n")


def test_the_first_rank_that_fails_is_named_with_its_last_lines_and_ends_the_others(parent: Parent) -> None:
    begin = time.monotonic()
    code, _, err = parent.run("""
        if rank == 1:
            print("before")
            raise RuntimeError("bad weights")
        time.sleep(300)
    """)
    assert time.monotonic() - begin < 60
    assert code == 1
    assert "rank 1 failed with exit status 1; its last lines:\nbefore\nTraceback" in err
    assert err.rstrip().endswith("RuntimeError: bad weights")


def test_the_cause_is_named_even_if_its_victims_end_first(parent: Parent) -> None:
    """Rank 1 fails first but takes longer to end than rank 0, which fails because of it."""
    code, _, err = parent.run("""
        flag = logs / "failed"
        if rank == 1:
            atexit.register(time.sleep, 1.0)
            flag.touch()
            sys.exit(7)
        while not flag.exists():
            time.sleep(0.01)
        time.sleep(0.3)
        sys.exit(8)
    """)
    assert code == 7 and "rank 1 failed with exit status 7" in err


def test_a_killed_rank_is_the_cause_although_it_cannot_say_so(parent: Parent) -> None:
    """Rank 1 is killed; the others fail because of it and say so at once."""
    code, _, err = parent.run("""
        if rank == 1:
            (logs / "pid").write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        while not (logs / "pid").exists() or Path(f"/proc/{(logs / 'pid').read_text() or 0}/stat").read_text().split()[2] != "Z":
            time.sleep(0.001)
        raise RuntimeError("connection reset by peer")
    """)
    assert code == 128 + signal.SIGKILL
    assert "rank 1 was ended by signal 9" in err.splitlines()[-1]


def test_a_rank_that_is_killed_after_the_first_failure_is_not_the_cause(parent: Parent) -> None:
    code, _, err = parent.run("""
        if rank == 0:
            atexit.register(time.sleep, 1.0)
            (logs / "failed").touch()
            sys.exit(7)
        while not (logs / "failed").exists():
            time.sleep(0.01)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    assert code == 7 and "rank 0 failed with exit status 7" in err


@pytest.mark.parametrize(
    ("body", "expected", "said"),
    [
        ("sys.exit(0)", 0, ""),
        ("sys.exit(2)", 2, ""),
        ("raise UserError('give --lr')", 2, "error: give --lr\n"),
        ("sys.exit('no data')", 1, "no data\n"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "rank 0 was ended by signal 9 (out of memory? use fewer ranks"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "rank 0 was ended by signal 11\n"),
        ("raise KeyboardInterrupt", 130, ""),
    ],
)
def test_exit_statuses_are_passed_on(parent: Parent, body: str, expected: int, said: str) -> None:
    code, _, err = parent.run(body, count=1)
    assert code == expected
    assert said in err
    assert "Traceback" not in err


def test_a_mistake_that_every_rank_reports_is_shown_once(parent: Parent) -> None:
    code, _, err = parent.run("raise UserError('give --lr')")
    assert (code, err) == (2, "error: give --lr\n")


READY = "(logs / f'ready-{rank}').touch()"


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def ready(parent: Parent, count: int) -> bool:
    return len(list(parent.logs.glob("ready-*"))) == count


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_reach_the_ranks_which_may_end_well(parent: Parent, number: signal.Signals) -> None:
    process = parent.start(f"""
        def stop(number, frame):
            (logs / f"stopped-{{rank}}-{{number}}").touch()
            sys.exit(0)
        signal.signal({int(number)}, stop)
        {READY}
        time.sleep(300)
    """)
    wait_for(lambda: ready(parent, 3))
    process.send_signal(number)
    assert process.wait(timeout=30) == 0
    process.communicate()
    assert len(list(parent.logs.glob(f"stopped-*-{int(number)}"))) == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_without_a_handler_closes_every_rank_quietly(parent: Parent, number: signal.Signals) -> None:
    process = parent.start(f"""
        atexit.register(lambda: (time.sleep(0.2), (logs / f"closed-{{rank}}").touch()))
        {READY}
        time.sleep(300)
    """)
    wait_for(lambda: ready(parent, 3))
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (128 + number, "")
    assert len(list(parent.logs.glob("closed-*"))) == 3


def test_closing_is_not_interrupted_by_the_launcher_that_ends_all(parent: Parent) -> None:
    """Rank 0 has ended by the signal long before rank 2 is done: the launcher asks again, and waits."""
    process = parent.start(f"""
        if rank == 2:
            atexit.register(lambda: (time.sleep(2.5), (logs / "closed").touch()))
        {READY}
        time.sleep(300)
    """)
    wait_for(lambda: ready(parent, 3))
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 128 + signal.SIGTERM
    process.communicate()
    assert (parent.logs / "closed").exists()


def test_a_rank_that_loses_its_peers_to_a_signal_shows_no_traceback(parent: Parent) -> None:
    """A call into a library that waits for another rank fails before Python looks at the signal."""
    process = parent.start(f"""
        {READY}
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        while not signal.sigpending():
            time.sleep(0.01)
        try:
            raise RuntimeError("connection closed by peer")
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    """)
    wait_for(lambda: ready(parent, 3))
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (128 + signal.SIGTERM, "")


def test_processes_of_a_rank_are_ended_by_a_signal_at_once(parent: Parent) -> None:
    code, out, _ = parent.run(
        """
        ready, running = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.write(running, b".")
                time.sleep(60)
            finally:
                print("closed")
                os._exit(0)
        os.read(ready, 1)
        os.kill(pid, signal.SIGTERM)
        print(os.WTERMSIG(os.waitpid(pid, 0)[1]))
        """,
        count=1,
    )
    assert (code, out) == (0, "15\n")


def test_a_second_signal_kills(parent: Parent) -> None:
    process = parent.start(f"""
        signal.signal(signal.SIGTERM, lambda *_: (logs / f"asked-{{rank}}").touch())
        {READY}
        while True:
            time.sleep(1)
    """)
    wait_for(lambda: ready(parent, 3))
    process.send_signal(signal.SIGTERM)
    wait_for(lambda: len(list(parent.logs.glob("asked-*"))) == 3)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 128 + signal.SIGKILL
    process.communicate()


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def test_no_rank_outlives_a_killed_parent(parent: Parent) -> None:
    process = parent.start("(logs / f'pid-{rank}').write_text(str(os.getpid()))\n" + READY + "\ntime.sleep(300)")
    wait_for(lambda: ready(parent, 3))
    pids = [int(file.read_text()) for file in parent.logs.glob("pid-*")]
    process.kill()
    process.communicate()
    wait_for(lambda: not any(is_running(pid) for pid in pids))


def test_a_free_port_can_be_bound() -> None:
    port = free_port()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))


def test_a_full_disk_is_named_as_the_reason_for_lost_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rank-0.log").write_text("half a li")
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=0))
    fork_report.report_failure(0, 1, tmp_path / "rank-0.log")
    first, _, last = capsys.readouterr().err.splitlines()
    assert first.endswith("rank 0 failed with exit status 1; its last lines:")
    assert f"no space is left in {tmp_path}, so output was lost" in last
