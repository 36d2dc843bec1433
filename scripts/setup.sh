#!/usr/bin/env bash
# Sets up the Python environment: torch (CPU), megatron-core, megatron-energy. Usage: scripts/setup.sh [--test] [--system]
#   --test      the checkers and pytest as well
#   --system    install missing system packages (apt-get)
# Environment variables: MEGATRON_ENERGY_VENV (its folder), PYTHON (base interpreter), MEGATRON_ENERGY_TORCH (torch requirement).
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$ROOT/scripts/lib/messages.sh"
. "$ROOT/scripts/lib/environment.sh"
. "$ROOT/scripts/lib/megatron_core.sh"

kind=run
system=false
for option in "$@"; do
    case $option in
        --test) kind="test" ;;
        --system) system=true ;;
        -h | --help) show_help ;;
        *) die "no option $option: use --test and --system" ;;
    esac
done
set_up_environment "$kind" "$system"
say "ready: $ENVIRONMENT/bin/megatron-energy"
