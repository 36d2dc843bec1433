"""Megatron's order of operations, its point-to-point semantics, the dependency graph and its replay."""
