"""``python -m megatron_energy``: the command line."""

import sys

if __name__ == "__main__":
    try:
        from megatron_energy.cli.main import main
    except KeyboardInterrupt:  # so early that nothing has been started
        sys.exit(130)
    sys.exit(main())
