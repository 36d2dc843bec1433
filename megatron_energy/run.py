"""``python -m megatron_energy.run SCRIPT.py ARGS...``; see :mod:`megatron_energy.cli.launch`."""

import sys

from megatron_energy.cli.launch import main

if __name__ == "__main__":
    sys.exit(main())
