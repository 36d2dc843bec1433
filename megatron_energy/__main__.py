"""``python -m megatron_energy``: the command line."""

import sys

from megatron_energy.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
