"""The time line, drawn by a short-lived process while training goes on.

Drawing is a second or two of Python. In the training process, even in a thread of its own, it would hold the interpreter's lock against the
thread that enqueues the GPU's work, and all ranks wait for that. The process is started afresh, not forked, as CUDA survives no fork.
"""

import dataclasses
import io
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from megatron_energy.session.background import Background
from megatron_energy.session.drawing import Picture

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

LIMIT_S = 60.0
"""How long the end of a run waits for a picture at most."""

KINDNESS = 10
"""Niceness of the process: cores are training's first."""

_ROOT = Path(__file__).parents[2]
# Nothing is imported from the working directory, where users' files may have the names of modules.
_PROGRAM = f"import sys; sys.path = [*filter(None, sys.path), {str(_ROOT)!r}]; from {__name__} import main; main(sys.argv[1])"


class DrawnAside:
    """Draws pictures one after another, each in a process of its own.

    Args:
        say: told in one line of a picture that could not be drawn.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._background = Background(lambda error: self._lost(f"{type(error).__name__}: {error}"), name="drawing")
        self._drawn: deque[npt.NDArray[np.uint8]] = deque()
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = threading.Lock()
        self._given_up = False
        self._background.submit(lambda: None)  # Python 3.12 starts no thread while it ends, and then the last picture is drawn

    def begin(self, picture: Picture) -> None:
        """Draw it. Nothing is waited for."""
        self._background.submit(lambda: self._draw(picture))

    def drawn(self) -> "list[npt.NDArray[np.uint8]]":
        """The pictures that have been finished since the last call."""
        return [self._drawn.popleft() for _ in range(len(self._drawn))]

    def finish(self, limit_s: float = LIMIT_S) -> None:
        """Wait for what was begun; what takes too long is given up, and that is said."""
        if self._background.idle(limit_s):
            return
        with self._starting:
            self._given_up = True
            if self._process is not None:
                self._process.kill()
        self._lost(f"not finished after {limit_s:.0f} s")

    def _lost(self, why: str) -> None:
        self._say(f"no new time line: {why}")

    def _draw(self, picture: Picture) -> None:
        file, name = tempfile.mkstemp(prefix=".timeline.", dir=picture.directory)
        try:
            with os.fdopen(file, "wb") as stream:
                _write(picture, stream)
            self._run(name)
        finally:
            Path(name).unlink(missing_ok=True)

    def _run(self, name: str) -> None:
        import numpy as np

        process = self._start(name)
        if process is None:
            return
        out, told = process.communicate()
        if self._given_up:
            return
        if process.returncode:
            self._lost((told.decode(errors="replace").strip().splitlines() or [f"exit status {process.returncode}"])[-1])
        else:
            self._drawn.append(np.load(io.BytesIO(out), allow_pickle=False))

    def _start(self, name: str) -> "subprocess.Popen[bytes] | None":
        """The process; None where nobody waits for it any more."""
        with self._starting:
            if self._given_up:
                return None
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, name], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            return self._process


def _write(picture: Picture, stream: io.BufferedWriter) -> None:
    """Rank by rank: the lock is not held for longer than one takes."""
    pickle.dump(dataclasses.replace(picture, baseline=(), planned=()), stream)
    for records in (picture.baseline, picture.planned):
        for record in (*records, None):
            pickle.dump(record, stream)


def _read(stream: io.BufferedReader) -> Picture:
    picture: Picture = pickle.load(stream)
    baseline, planned = (list(iter(lambda: pickle.load(stream), None)) for _ in range(2))
    return dataclasses.replace(picture, baseline=baseline, planned=planned)


def main(name: str) -> None:
    """In the process: the picture as a file of numpy's to the standard output."""
    import numpy as np

    os.nice(KINDNESS)
    with Path(name).open("rb") as stream:
        picture = _read(stream)
    Path(name).unlink(missing_ok=True)  # whatever becomes of the training process
    np.save(sys.stdout.buffer, picture.draw(), allow_pickle=False)
