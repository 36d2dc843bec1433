"""What pyproject.toml cannot say: ``patches/`` and ``scripts/`` stand at the top and are installed as subpackages.

There they are in sight of who reads the repository, and installed ``megatron-energy patch list`` finds them.
"""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["megatron_energy", "megatron_energy.*"]), "megatron_energy.patches", "megatron_energy.scripts"],
    package_dir={"megatron_energy.patches": "patches", "megatron_energy.scripts": "scripts"},
    package_data={
        "megatron_energy": ["py.typed"],
        "megatron_energy.emulation": ["gpus/*.json"],
        "megatron_energy.patches": ["**/*.patch", "**/*.json", "README.md"],
        "megatron_energy.scripts": ["*.sh", "lib/*.sh", "slurm/*.s*", "slurm/*/*.sh", "systemd/*.service", "systemd/*.logrotate"],
    },
)
