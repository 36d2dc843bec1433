"""Start the launcher several times from one process that has done the imports: ``python -m tests.session.several_launches DIR``.

DIR/launches.json is a JSON object: name -> arguments of the launcher. What launch ``name`` prints goes to DIR/<name>.out and
DIR/<name>.err; the exit statuses, by name, to DIR/statuses.json.
"""

import json
import os
import sys
from pathlib import Path

from megatron_energy.cli import launch
from megatron_energy.megatron import cpu


def redirected(words: list[str], stem: Path) -> int:
    """Exit status of one launch, its output in files."""
    kept = os.dup(1), os.dup(2)
    for descriptor, suffix in ((1, ".out"), (2, ".err")):
        file = os.open(stem.with_name(stem.name + suffix), os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
        os.dup2(file, descriptor)
        os.close(file)
    try:
        return launch.main(words)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, old in zip((1, 2), kept, strict=True):
            os.dup2(old, descriptor)
            os.close(old)


def main(folder: Path) -> None:
    cpu.install()
    import tests.megatron.tiny_gpt  # noqa: F401  # what every rank would import

    launches = json.loads((folder / "launches.json").read_text())
    (folder / "statuses.json").write_text(json.dumps({name: redirected(words, folder / name) for name, words in launches.items()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
