"""The schema of what happened in a run: written by the hooks and the emulation, read by everything above."""
