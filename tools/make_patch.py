"""Makes the patch of a version of megatron-core from its released schedules and an edited copy of them.

Insertions only, without context, pinned to the SHA-256 of both: see patches/README.md.
"""

import argparse
import sys
from pathlib import Path

from megatron_energy.megatron.patch_file import PatchFileError, between, parse

TARGET = "megatron/core/pipeline_parallel/schedules.py"
PATCHES = Path(__file__).resolve().parents[1] / "patches"


def main() -> int:
    """Write the patch and name it; 2 where the edited file does more than insert."""
    parser = argparse.ArgumentParser(description="Make the patch of a version of megatron-core.", allow_abbrev=False)
    parser.add_argument("released", type=Path, help="schedules.py as released")
    parser.add_argument("edited", type=Path, help="the same file with the insertions")
    parser.add_argument("--version", required=True, help="of megatron-core, such as 0.20.0")
    parser.add_argument("--out", type=Path, default=PATCHES, help="folder to write to (default: patches)")
    args = parser.parse_args()
    try:
        text = between(args.released.read_bytes(), args.edited.read_bytes(), args.version, TARGET)
    except (OSError, PatchFileError) as error:
        print(f"make_patch.py: {error}", file=sys.stderr)
        return 2
    path = args.out / f"megatron-core-{args.version}.patch"
    path.write_text(text, encoding="utf-8")
    print(f"{path}: {parse(text).inserted_lines} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
