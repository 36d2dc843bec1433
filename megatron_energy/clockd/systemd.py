"""Telling systemd how the service is (sd_notify(3)); outside of systemd nothing happens."""

import os
import socket
from contextlib import suppress


def notify(state: str) -> None:
    """Send a state such as ``READY=1`` to the service manager that ``NOTIFY_SOCKET`` names."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as link:
        link.setblocking(False)
        with suppress(OSError):  # a manager that does not listen is not ours to wait for
            link.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
