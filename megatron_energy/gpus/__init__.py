"""Real GPUs: one device interface, NVML through pynvml, the energy meter, the clock controller."""
