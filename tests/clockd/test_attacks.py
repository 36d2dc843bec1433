"""A reduced form of tools/check_clockd.py."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clockd.host import Host
from tests.clockd.kills import FOUND_MW, is_restored, kill
from tests.clockd.mutation import attack, rules_for


@pytest.fixture
def open_host() -> Iterator[Host]:
    """A host in a folder that other users can reach."""
    folder = Path(tempfile.mkdtemp(prefix="clockd-test-"))
    folder.chmod(0o755)
    host = Host(folder)
    yield host
    host.close()
    shutil.rmtree(folder)


def test_mutated_messages_change_nothing(open_host: Host) -> None:
    open_host.write_rules(rules_for(open_host))
    daemon = open_host.start()
    stranger, wrong = attack(open_host, 3000, seed=2)
    assert not wrong
    assert daemon.poll() is None
    # The attack is worth something only if it gets as far as each of the answers.
    assert {"granted", "malformed", "denied", "no-lease"} <= set(stranger.outcomes)
    assert sum(stranger.outcomes.values()) == 3002


def test_repeated_kills(host: Host) -> None:
    host.set_limit_mw(0, FOUND_MW)
    daemon = host.start()
    for victims in ("holder", "clockd", "both", "holder"):
        _, daemon = kill(host, daemon, victims, keep_socket=True)
        assert is_restored(host)
