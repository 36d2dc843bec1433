"""Patches that only insert lines: unified diffs without context, each pinned to the SHA-256 of the one file that it fits.

Such a patch holds no line of the file that it changes. Above its hunks it says what it is for::

    version: 0.19.2
    target: megatron/core/pipeline_parallel/schedules.py
    sha256: <of the file as released>
    patched-sha256: <of the file with the insertions>
    --- a/megatron/core/pipeline_parallel/schedules.py
    +++ b/megatron/core/pipeline_parallel/schedules.py
    @@ -43,0 +44,2 @@
    +line 44 of the patched file
    +line 45 of it
"""

import difflib
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

_HUNK = re.compile(r"@@ -(\d+),0 \+(\d+)(?:,(\d+))? @@")


class PatchFileError(ValueError):
    """A text that is no patch of this kind, or files between which there is none."""


@dataclass(frozen=True)
class Insertion:
    """``lines`` are put behind line ``after`` of the released file (0: above the first)."""

    after: int
    lines: tuple[bytes, ...]


@dataclass(frozen=True)
class Patch:
    """Insertions into one file.

    Attributes:
        version: of megatron-core, as released.
        target: the file, below the folder that holds ``megatron/``.
        sha256: of the file as released.
        patched_sha256: of the file with the insertions.
        insertions: from the top down.
    """

    version: str
    target: str
    sha256: str
    patched_sha256: str
    insertions: tuple[Insertion, ...]

    @property
    def inserted_lines(self) -> int:
        """How many lines it inserts."""
        return sum(len(insertion.lines) for insertion in self.insertions)

    def applied_to(self, content: bytes) -> bytes:
        """The file with the insertions. Raises PatchFileError where the content or the outcome is not the one that was pinned."""
        return self._checked(content, self.sha256, _insert(content, self.insertions), self.patched_sha256)

    def taken_out_of(self, content: bytes) -> bytes:
        """The file as released. Raises PatchFileError where the content or the outcome is not the one that was pinned."""
        return self._checked(content, self.patched_sha256, _remove(content, self.insertions), self.sha256)

    def _checked(self, content: bytes, before: str, outcome: bytes, after: str) -> bytes:
        if digest(content) != before:
            raise PatchFileError(f"it is for another {self.target}")
        if digest(outcome) != after:
            raise PatchFileError(f"its insertions do not give the {self.target} that it promises")
        return outcome


def digest(content: bytes) -> str:
    """SHA-256 in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def parse(text: str) -> Patch:
    """Read a patch. Raises PatchFileError."""
    lines = iter(text.removesuffix("\n").split("\n"))
    head = dict(line.split(": ", 1) for line in takewhile(lambda line: not line.startswith("--- "), lines) if ": " in line)
    if not next(lines, "").startswith("+++ "):
        raise PatchFileError("no file is named above its hunks")
    try:
        return Patch(head["version"], head["target"], head["sha256"], head["patched-sha256"], tuple(_hunks(lines)))
    except KeyError as missing:
        raise PatchFileError(f"it does not say {missing}") from missing


def _hunks(lines: Iterator[str]) -> Iterator[Insertion]:
    inserted = 0
    for line in lines:
        hunk = _HUNK.fullmatch(line)
        if hunk is None:
            raise PatchFileError(f"{line!r} is no head of a hunk that only inserts")
        after, first, count = int(hunk[1]), int(hunk[2]), int(hunk[3] or 1)
        added = [next(lines, "") for _ in range(count)]
        if first != after + inserted + 1 or not all(one.startswith("+") for one in added):
            raise PatchFileError(f"the hunk {line!r} does not hold what it says")
        inserted += count
        yield Insertion(after, tuple(one[1:].encode() for one in added))


def _insert(content: bytes, insertions: tuple[Insertion, ...]) -> bytes:
    lines = content.split(b"\n")
    for insertion in reversed(insertions):
        lines[insertion.after : insertion.after] = insertion.lines
    return b"\n".join(lines)


def _remove(content: bytes, insertions: tuple[Insertion, ...]) -> bytes:
    lines = content.split(b"\n")
    for insertion in insertions:  # those above are out already
        del lines[insertion.after : insertion.after + len(insertion.lines)]
    return b"\n".join(lines)


def between(released: bytes, edited: bytes, version: str, target: str) -> str:
    """The text of the patch that makes ``edited`` of ``released``. Raises PatchFileError where lines were changed or left out."""
    old, new = released.decode().split("\n"), edited.decode().split("\n")
    hunks: list[str] = []
    for kind, after, _, first, last in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "insert":
            hunks += [f"@@ -{after},0 +{first + 1},{last - first} @@", *("+" + line for line in new[first:last])]
        elif kind != "equal":
            raise PatchFileError(f"line {after + 1} was changed or left out: a patch only inserts lines")
    pins = f"version: {version}\ntarget: {target}\nsha256: {digest(released)}\npatched-sha256: {digest(edited)}\n"
    return pins + "\n".join([f"--- a/{target}", f"+++ b/{target}", *hunks]) + "\n"
