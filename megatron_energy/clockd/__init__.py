"""The clock daemon: the one privileged process. It lends GPUs to training jobs and always takes them back.

It runs as root, so it is made to be read: the standard library, ``pynvml`` and :mod:`megatron_energy.gpus`, no threads,
one idea a file. In the order of a request's way through it: ``daemon`` (start, signals, stop), ``server`` and
``connection`` (the socket), ``peers`` (who asks), ``messages`` (what may be said), ``service`` (what is answered),
``rules`` and ``slurm`` (who may do what), ``leases``, ``controls`` (changing and restoring a GPU), ``hardware``
(its NVML calls), ``saved`` (what is restored after a crash), ``audit``. ``client`` and ``watchdog`` are the unprivileged
side, used by training.
"""
