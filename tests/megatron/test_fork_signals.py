"""Signals to the launcher and its ranks. The parents here are small programs without torch."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.megatron.forking import Parent


@pytest.fixture
def parent(tmp_path: Path) -> Parent:
    return Parent(tmp_path)


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
