"""A directory for PYTHONPATH: Python processes that find it emulate GPUs from their start."""
