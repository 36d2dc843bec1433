# shellcheck shell=bash
# megatron-core for the environment, and further versions beside it for the tests. Needs messages.sh and environment.sh.

MEGATRON_CORE_VERSION=0.19.2
# The oldest that works, the last without megatron.training, and the last that waits for sends late.
OTHER_MEGATRON_CORES="0.12.3 0.16.1 0.17.1"

# megatron-core from 0.17 on declares Python 3.12 but runs on 3.10 and 3.11 (it only misses typing.override there, which
# megatron_energy.run supplies). Its own requirements (torch, numpy, packaging) are left to the caller, so that torch stays as it is.
PIP_CORE_OPTIONS=(--no-deps --ignore-requires-python)

# There are wheels for Python 3.11 and newer; for 3.10 pip builds one, which takes about 20 s.
check_compiler() {
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info >= (3, 11))' || return 0
    command -v g++ >/dev/null || install_system_package "g++, to build megatron-core for Python 3.10," g++ python3-dev
}

# Keeps a megatron.training that is there; else installs the pinned version.
install_megatron_core() {
    if is_there megatron.training; then
        say "megatron-core of this environment is kept"
        return
    fi
    if is_there megatron.core; then
        die "megatron-core in $ENVIRONMENT has no megatron.training (it came with 0.17): upgrade it, or set MEGATRON_ENERGY_VENV to a new folder"
    fi
    check_compiler
    pip_install "megatron-core $MEGATRON_CORE_VERSION" "${PIP_CORE_OPTIONS[@]}" "megatron-core==$MEGATRON_CORE_VERSION"
}

# Puts every other version into a folder of its own, to be put first on PYTHONPATH; torch is shared.
# Exports MEGATRON_ENERGY_OTHER_CORES: the folders, joined by colons, each named by its version.
install_other_megatron_cores() {
    local version folder folders=()
    for version in $OTHER_MEGATRON_CORES; do
        folder=$ENVIRONMENT/megatron-cores/$version
        if [ ! -f "$folder/megatron/__init__.py" ]; then
            check_compiler
            rm -rf "$folder"
            pip_install "megatron-core $version beside it" "${PIP_CORE_OPTIONS[@]}" --target "$folder" "megatron-core==$version"
            # megatron is a namespace package: without this file, parts that this version lacks would come from the other one.
            printf '"""megatron-core %s alone."""\n' "$version" >"$folder/megatron/__init__.py"
        fi
        folders+=("$folder")
    done
    MEGATRON_ENERGY_OTHER_CORES=$(IFS=:; printf '%s' "${folders[*]}")
    export MEGATRON_ENERGY_OTHER_CORES
}
