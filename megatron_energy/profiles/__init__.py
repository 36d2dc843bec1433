"""Time and energy per operation kind and clock: curves, tables, fits, files."""
