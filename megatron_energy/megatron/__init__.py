"""Everything that knows Megatron: hooks, recorder, flags, CPU shims, version differences."""
