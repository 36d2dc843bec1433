from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clockd.host import EVERYTHING, Host


@pytest.fixture
def new_host(tmp_path: Path) -> Iterator[Callable[..., Host]]:
    """Makes hosts; at the end their processes are killed."""
    hosts: list[Host] = []

    def make(rules: str = EVERYTHING, gpus: int = 4) -> Host:
        folder = tmp_path / f"host{len(hosts)}"
        folder.mkdir(mode=0o755)
        hosts.append(Host(folder, rules, gpus))
        return hosts[-1]

    yield make
    for host in hosts:
        host.close()


@pytest.fixture
def host(new_host: Callable[..., Host]) -> Host:
    """One host, on which everybody may do everything; clockd does not run yet."""
    return new_host()
