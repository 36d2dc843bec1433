"""``python -m megatron_energy.run SCRIPT.py ARGS...``; see :mod:`megatron_energy.cli.launch`."""

import sys

if __name__ == "__main__":
    try:
        from megatron_energy.cli.launch import main
    except KeyboardInterrupt:  # so early that nothing has been started
        sys.exit(130)
    sys.exit(main())
