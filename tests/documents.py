"""README and docs/ as their tests see them: code blocks and what they hold, commands, flags, links."""

import itertools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.source_tree import ROOT

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))

SHELL_LANGUAGES = ("sh", "bash", "shell", "console")


@dataclass(frozen=True)
class Block:
    """A fenced or indented code block; ``line`` is where its text begins."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def kind(self) -> str:
        """``commands``, ``script``, or the language; an unmarked block is told by how it begins."""
        if self.language:
            is_shell = self.language in SHELL_LANGUAGES
            return ("script" if self.text.startswith("#!") else "commands") if is_shell else self.language
        start = self.text.lstrip()
        for kind, pattern in (("json", r"[{\[]"), ("csv", r"stage,"), ("python", r"(import|from|with) "), ("synopsis", r"--")):
            if re.match(pattern, start):
                return kind
        return "commands"

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """The code blocks of a page, in order."""
    found: list[Block] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        line = lines[number]
        if fence := re.match(r"```(\w*)", line):
            end = lines.index("```", number + 1)
            found.append(Block(page, number + 2, fence[1], "\n".join(lines[number + 1 : end]) + "\n"))
            number = end + 1
        elif line.startswith("    ") and (number == 0 or not lines[number - 1].strip()):
            end = number
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            text = "\n".join(text_line[4:] for text_line in lines[number:end]).rstrip() + "\n"
            found.append(Block(page, number + 1, "", text))
            number = end
        else:
            number += 1
    return found


@dataclass(frozen=True)
class Command:
    """One command line of a page.

    ``words`` come without comments, ``...``, ``$ARGS``, brackets around what is optional, and variables set before the command.
    """

    page: Path
    line: int
    text: str
    words: tuple[str, ...]
    variables: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line} {' '.join(self.words)[:60]}"


def commands(page: Path) -> Iterator[Command]:
    """Every command line that a page shows."""
    for block in blocks(page):
        if block.kind != "commands":
            continue
        number = block.line
        lines = block.text.splitlines()
        while lines:
            first, text = number, lines.pop(0)
            number += 1
            while text.endswith("\\"):
                text = text[:-1] + lines.pop(0).lstrip()
                number += 1
            if words := shlex.split(re.sub(r"[\[\]]", " ", text) if "[--" in text else text, comments=True):
                yield _command(page, first, text, words)


def _command(page: Path, line: int, text: str, words: list[str]) -> Command:
    variables = []
    while words and (found := re.fullmatch(r"([A-Z_]+)=(.*)", words[0])):
        variables.append((found[1], found[2]))
        words.pop(0)
    kept = tuple(word for word in words if word not in ("...", "$ARGS"))
    return Command(page, line, text, kept, tuple(variables))


def shown_outputs(page: Path) -> Iterator[tuple[Command, Block]]:
    """(command, text block right after it) for plans and replays whose output the page shows."""
    lines = page.read_text(encoding="utf-8").splitlines()
    found = blocks(page)
    at_line = {command.line: command for command in commands(page)}
    for block, after in itertools.pairwise(found):
        between = lines[block.line + block.text.count("\n") - 1 : after.line - 2]
        command = at_line.get(block.line)
        if after.kind == "text" and not any(between) and command is not None and command.words[0] == "megatron-energy":
            yield command, after


def flags(text: str) -> set[str]:
    """Every ``--flag`` of a text; ``--energy-*`` is none."""
    return set(re.findall(r"(?<![\w-])--[a-z][a-z0-9]*(?:-[a-z0-9]+)*(?![\w*-])", text))


def links(page: Path) -> list[tuple[str, str]]:
    """(file, anchor) of every link and picture within the repository; an empty file is the page itself."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    split = [target.partition("#") for target in targets if not re.match(r"[a-z]+://", target)]
    return [(file, anchor) for file, _, anchor in split]


def named_files(page: Path) -> set[str]:
    """Paths anywhere in the text that begin with a folder of the repository; ``*`` is a pattern."""
    text = page.read_text(encoding="utf-8")
    return set(re.findall(r"(?<![\w/.-])((?:docs|megatron_energy|patches|scripts|tests|tools)/[\w*./-]*\w)", text))


def anchors(page: Path) -> set[str]:
    """What headings can be linked to, as GitHub names them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
