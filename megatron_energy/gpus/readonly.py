"""NVML without the functions that change something: a promise that a program keeps whatever it calls."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pynvml

from megatron_energy.gpus.library import open_nvml

READING = ("nvmlInit", "nvmlShutdown", "nvmlErrorString", "nvmlSystemGet", "nvmlUnitGet", "nvmlDeviceGet", "nvmlDeviceIs")
"""Beginnings of the C names that only read (nvml.h)."""


def is_reading(name: str) -> bool:
    """Whether the NVML function with this C name changes nothing."""
    return name.startswith(READING)


class ReadingLibrary:
    """Stands between pynvml and libnvidia-ml: a function that does not only read is refused with NO_PERMISSION.

    Attributes:
        refused: C names of the functions that were called in vain.
    """

    def __init__(self, library: Any) -> None:
        self.refused: list[str] = []
        self._library = library

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvml") and not is_reading(name):
            return self._refuse(name)
        return getattr(self._library, name)

    def may_control(self) -> bool:
        """Never (what an emulated library is asked)."""
        return False

    def _refuse(self, name: str) -> Callable[..., int]:
        def refused(*_arguments: Any) -> int:
            self.refused.append(name)
            return int(pynvml.NVML_ERROR_NO_PERMISSION)

        return refused


@contextmanager
def read_only() -> Iterator[ReadingLibrary]:
    """Let this process's NVML only read until the block ends, through pynvml of whatever module. Raises as ``open_nvml``."""
    open_nvml()
    library = pynvml.nvmlLib
    guard = ReadingLibrary(library)
    _put_under_pynvml(guard)
    try:
        yield guard
    finally:
        _put_under_pynvml(library)


def _put_under_pynvml(library: Any) -> None:
    pynvml._nvmlGetFunctionPointer_cache.clear()  # functions found so far would go on reaching the library before
    pynvml.nvmlLib = library
