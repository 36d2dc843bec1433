"""Puts the real output of ``megatron-energy plan`` and ``replay`` into the pages that show it: ``python tools/refresh_docs.py``.

A page's commands run in order, in an empty folder with the profile (and the graph) that the page shows. Run it from the repository.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests import documents  # noqa: E402


def output(command: documents.Command, folder: str) -> str:
    """What the command prints, without spaces at the ends of lines."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    words = [sys.executable, "-m", "megatron_energy", *command.words[1:]]
    done = subprocess.run(words, cwd=folder, env=environment, check=True, capture_output=True, text=True)
    return "".join(line.rstrip() + "\n" for line in done.stdout.splitlines())


def refresh(page: Path) -> bool:
    """Rewrite a page; whether anything changed."""
    before = page.read_text(encoding="utf-8")
    text = before
    with tempfile.TemporaryDirectory() as folder:
        for name, kind in (("profile.csv", "csv"), ("graph.json", "json")):
            shown_files = [block.text for block in documents.blocks(page) if block.kind == kind]
            if shown_files:
                Path(folder, name).write_text(shown_files[0], encoding="utf-8")
        for command, shown in documents.shown_outputs(page):
            text = text.replace(shown.text, output(command, folder), 1)
    page.write_text(text, encoding="utf-8")
    return text != before


if __name__ == "__main__":
    for each in documents.PAGES:
        if refresh(each):
            print(f"{each.relative_to(ROOT)} has new output")
