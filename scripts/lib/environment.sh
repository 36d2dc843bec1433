# shellcheck shell=bash
# The Python environment that the scripts work in. Needs messages.sh; ROOT is the top of the repository.
#
# set_up_environment KIND [ALLOW_SYSTEM] leaves its interpreter in PYTHON. Environment, the first of:
#   MEGATRON_ENERGY_VENV    a folder, made where there is none
#   VIRTUAL_ENV             the active virtual environment
#   .venv                   in the repository
# An installed torch is kept, also one outside the new environment (NVIDIA's images); else MEGATRON_ENERGY_TORCH is installed.

# CPU file where the package index has one; a CUDA build elsewhere, which runs the CPU examples as well.
TORCH_REQUIREMENT=${MEGATRON_ENERGY_TORCH:-torch==2.13.0}
OLDEST_PYTHON=3.10

# Chooses ENVIRONMENT and says why in ENVIRONMENT_REASON.
choose_environment() {
    if [ -n "${MEGATRON_ENERGY_VENV:-}" ]; then
        ENVIRONMENT=$MEGATRON_ENERGY_VENV ENVIRONMENT_REASON="MEGATRON_ENERGY_VENV"
    elif [ -n "${VIRTUAL_ENV:-}" ]; then
        ENVIRONMENT=$VIRTUAL_ENV ENVIRONMENT_REASON="the active virtual environment"
    else
        ENVIRONMENT=$ROOT/.venv ENVIRONMENT_REASON="made by these scripts"
    fi
    ENVIRONMENT=$(realpath --canonicalize-missing --no-symlinks "$ENVIRONMENT")
}

# is_there MODULE...: whether the interpreter PYTHON finds every module, without importing it.
is_there() {
    "$PYTHON" - "$@" 2>/dev/null <<'END'
import importlib.util
import sys


def is_there(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of a parent package
        return False


sys.exit(not all(is_there(name) for name in sys.argv[1:]))
END
}

# Refuses an interpreter that is missing or too old.
check_interpreter() {
    command -v "$PYTHON" >/dev/null || die "no $PYTHON here: install Python $OLDEST_PYTHON or newer, or set PYTHON to its path"
    "$PYTHON" -c "import sys; sys.exit(sys.version_info < (${OLDEST_PYTHON/./, }))" ||
        die "$PYTHON is older than $OLDEST_PYTHON: set PYTHON to the path of a newer one"
}

# install_system_package NEEDED_FOR PACKAGE...: through apt-get, and only where ALLOW_SYSTEM says so.
install_system_package() {
    local needed_for=$1
    shift
    if ! "$ALLOW_SYSTEM"; then
        die "$needed_for is missing: install it (Debian, Ubuntu: apt-get install $*), or run this script with --system"
    fi
    command -v apt-get >/dev/null || die "$needed_for is missing, and there is no apt-get here: install it by hand"
    say "installing $*"
    quietly "apt-get update" apt-get update
    quietly "apt-get install $*" env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "$@"
}

# The torch of a plain interpreter (NVIDIA's images) can be seen from an environment; that of another environment cannot.
is_plain_with_torch() {
    "$PYTHON" -c 'import sys; sys.exit(sys.prefix != sys.base_prefix)' && is_there torch
}

# Makes ENVIRONMENT where there is none, and sets PYTHON to its interpreter.
create_environment() {
    local options=()
    if [ -x "$ENVIRONMENT/bin/python" ]; then
        PYTHON=$ENVIRONMENT/bin/python
        check_interpreter
        "$PYTHON" -m pip --version >/dev/null 2>&1 || quietly "bringing pip into $ENVIRONMENT" "$PYTHON" -m ensurepip
        return
    fi
    if [ -d "$ENVIRONMENT" ] && [ ! -f "$ENVIRONMENT/pyvenv.cfg" ] && [ -n "$(ls -A "$ENVIRONMENT")" ]; then
        die "$ENVIRONMENT holds files but no Python environment: set MEGATRON_ENERGY_VENV to a new folder"
    fi
    PYTHON=${PYTHON:-python3}
    check_interpreter
    "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || install_system_package "Python's venv module" python3-venv
    if is_plain_with_torch; then
        options=(--system-site-packages)
        say "the torch of $(command -v "$PYTHON") is kept"
    fi
    say "making the environment $ENVIRONMENT"
    quietly "making $ENVIRONMENT" "$PYTHON" -m venv "${options[@]}" "$ENVIRONMENT"
    PYTHON=$ENVIRONMENT/bin/python
}

# What the environment depends on, in one line.
fingerprint() {
    {
        printf '%s\n' "$1" "$ROOT" "$TORCH_REQUIREMENT"
        "$PYTHON" --version
        cat "$ROOT/pyproject.toml" "$ROOT/setup.py" "$ROOT"/scripts/lib/*.sh
    } | sha256sum | cut -c 1-64
}

# pip_install WHAT ARGUMENT...: installs into the environment.
pip_install() {
    local what=$1
    shift
    say "installing $what"
    quietly "installing $what" "$PYTHON" -m pip install --disable-pip-version-check --no-input --progress-bar off "$@"
}

# set_up_environment KIND [ALLOW_SYSTEM]: KIND is run, or test for the checkers and pytest as well; ALLOW_SYSTEM is true or false.
# A second call with nothing changed takes a fraction of a second.
set_up_environment() {
    local kind=$1 stamp
    ALLOW_SYSTEM=${2:-false}
    choose_environment
    create_environment
    say "environment $ENVIRONMENT ($ENVIRONMENT_REASON), $("$PYTHON" --version)"
    stamp=$ENVIRONMENT/megatron-energy-$kind.stamp
    if [ "$(cat "$stamp" 2>/dev/null)" = "$(fingerprint "$kind")" ] && is_there torch megatron.training tensorboard; then
        return
    fi
    is_there torch || pip_install "$TORCH_REQUIREMENT (another build: MEGATRON_ENERGY_TORCH)" "$TORCH_REQUIREMENT"
    install_megatron_core
    case $kind in
        run) pip_install "megatron-energy" --editable "$ROOT" packaging psutil pyyaml tensorboard ;;
        test) pip_install "megatron-energy and its checkers" --editable "${ROOT}[dev]" packaging ;;
        *) die "set_up_environment: no kind $kind: use run or test" ;;
    esac
    fingerprint "$kind" >"$stamp"
}
