"""Ranks as forks: environment, output, exit statuses. The parents here are small programs without torch."""

import signal
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from megatron_energy.megatron import fork_report
from megatron_energy.megatron.fork import free_port
from tests.megatron.forking import Parent


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
    code, _, err = parent.run("""
        if rank == 1:
            print("before")
            raise RuntimeError("bad weights")
        time.sleep(300)
    """)
    assert code == 1
    assert "rank-1.log):\nbefore\nTraceback" in err
    assert err.rstrip().endswith("RuntimeError: bad weights\nmegatron_energy.run: rank 1 failed with exit status 1")


def test_the_cause_is_named_even_if_its_victims_end_first(parent: Parent) -> None:
    """Rank 1 fails first but ends after the others, which fail because of it."""
    code, _, err = parent.run("""
        def close():
            (logs / "failed").touch()
            wait_until_reaped(0)
            wait_until_reaped(2)

        here()
        if rank == 1:
            atexit.register(close)  # the rank has told by then that it failed
            sys.exit(7)
        wait_for("failed")
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
    """Rank 3 fails first, and ends last; rank 0 is killed after the parent has seen it running later than that.

    The parent looks at ranks in their order, so it notices the ends of 2, 1 and 0 in three rounds.
    """
    code, _, err = parent.run(
        """
        def close():
            (logs / "failed").touch()
            wait_until_reaped(0)

        here()
        if rank == 3:
            atexit.register(close)
            sys.exit(7)
        wait_for("failed")
        if rank < 2:
            wait_until_reaped(rank + 1)
        if rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        """,
        count=4,
    )
    assert code == 7 and "rank 3 failed with exit status 7" in err


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
    *_, lines, how, last = capsys.readouterr().err.splitlines()
    assert (lines, how) == ("half a li", "megatron_energy.run: rank 0 failed with exit status 1")
    assert f"no space is left in {tmp_path}, so output was lost" in last
