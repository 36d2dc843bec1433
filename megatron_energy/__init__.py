"""Energy scheduler for Megatron-LM training: plans the GPU clocks of every rank so that no time is lost."""

__version__ = "0.1.0"
