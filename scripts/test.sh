#!/usr/bin/env bash
# Checks and tests everything. Usage: scripts/test.sh [--system] [pytest arguments]
#   --system    install missing system packages (apt-get), and test other versions of megatron-core too; CI=1 does the same
# Environment variables: those of scripts/setup.sh; MEGATRON_ENERGY_DATA, a folder with the published profiles that some tests read.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$ROOT/scripts/lib/messages.sh"
. "$ROOT/scripts/lib/environment.sh"
. "$ROOT/scripts/lib/megatron_core.sh"

system=false
[ -z "${CI:-}" ] || system=true
case ${1:-} in
    -h | --help) show_help ;;
esac
if [ "${1:-}" = --system ]; then
    system=true
    shift
fi
set_up_environment test "$system"
if "$system"; then
    install_other_megatron_cores
fi
cd "$ROOT"

# check NAME COMMAND...: runs a checker; a failure is remembered, so that one run shows them all.
failed=()
check() {
    local name=$1
    shift
    say "$name"
    "$@" || failed+=("$name")
}
check "ruff check" "$PYTHON" -m ruff check
check "ruff format" "$PYTHON" -m ruff format --check
# The oldest and the newest supported Python: what one accepts the other may not.
check "mypy, Python 3.10" "$PYTHON" -m mypy --python-version 3.10
check "mypy, Python 3.13" "$PYTHON" -m mypy --python-version 3.13
# All cores; a file stays in one process, since its tests share what it takes long to set up.
check "pytest" "$PYTHON" -m pytest --numprocesses auto --dist loadfile "$@"
if [ ${#failed[@]} -gt 0 ]; then
    die "failed:$(printf ' [%s]' "${failed[@]}"); each says why above"
fi
