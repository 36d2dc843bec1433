"""The life of a run: baseline -> profile -> plan -> run. Knows neither torch nor Megatron."""
