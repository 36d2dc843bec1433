"""GPUs for hosts without any: an emulated NVML, a GPU catalog, a workload model, virtual time."""
