"""Patches for megatron-core where wrapping names is not enough: zero context, insertions only, pinned to a file's SHA-256."""
