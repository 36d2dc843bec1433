"""TensorBoard, traces, reports: everything a person reads about a run. Reads records, knows no Megatron."""
