"""Holding a process by a pidfd, which stays that process's when its number is given to another."""

import ctypes
import os

_PIDFD_OPEN = 434  # the system call's number on every architecture (Linux 5.3)


def open_pidfd(pid: int) -> int:
    """A pidfd of a process; readable once it has ended. Raises OSError: ESRCH, or ENOSYS before Linux 5.3.

    Pythons that were built on an older Linux have no ``os.pidfd_open``, whatever kernel they run on.
    """
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    descriptor = int(ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_OPEN, pid, 0))
    if descriptor < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return descriptor
