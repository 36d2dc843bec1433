#!/usr/bin/env bash
# A Slurm cluster of several virtual nodes on this one host, for rehearsals: Slurm and munge from Debian's packages, emulated GPUs, a
# clock daemon per node, and the Prolog, Epilog and TaskProlog of scripts/slurm/hooks. Needs root.
# Usage: scripts/slurm/testbed.sh up [--nodes N] [--gpus N] [--system] | down | status
#   --nodes N     virtual nodes, n1 to nN (default: 4)
#   --gpus N      emulated GPUs per node (default: 8)
#   --system      install missing system packages (apt-get); CI=1 does the same
# Environment variables: those of scripts/setup.sh, which has to be run before; MEGATRON_ENERGY_TESTBED, the folder that everything is
# kept in (default: /run/megatron-energy-testbed); MEGATRON_ENERGY_TESTBED_PORT, the first of the TCP ports in use (default: 17000).
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
. "$ROOT/scripts/lib/messages.sh"
. "$ROOT/scripts/lib/environment.sh"
. "$ROOT/scripts/slurm/testbed/configuration.sh"
. "$ROOT/scripts/slurm/testbed/daemons.sh"

STATE=${MEGATRON_ENERGY_TESTBED:-/run/megatron-energy-testbed}
FIRST_PORT=${MEGATRON_ENERGY_TESTBED_PORT:-17000}
NODES=4
GPUS_PER_NODE=8
ALLOW_SYSTEM=false
[ -z "${CI:-}" ] || ALLOW_SYSTEM=true
export PATH=$PATH:/usr/sbin:/sbin SLURM_CONF=$STATE/slurm.conf

# seconds_since MOMENT: of EPOCHREALTIME, with two decimals.
seconds_since() {
    local us=$((${EPOCHREALTIME/./} - ${1/./}))
    printf '%d.%02d' $((us / 1000000)) $((us % 1000000 / 10000))
}

check_options() {
    [[ $NODES =~ ^[1-9][0-9]?$ ]] || die "--nodes '$NODES': give a whole number from 1 to 99"
    [[ $GPUS_PER_NODE =~ ^[1-9][0-9]?$ ]] && [ "$GPUS_PER_NODE" -le 64 ] || die "--gpus '$GPUS_PER_NODE': give a whole number from 1 to 64"
    [[ $STATE == /* ]] || die "MEGATRON_ENERGY_TESTBED '$STATE': give an absolute path"
    [ "$(id -u)" = 0 ] || die "slurmd and its Prolog run as root: run this as root"
}

# The interpreter that the clock daemons run with.
find_python() {
    choose_environment
    PYTHON=$ENVIRONMENT/bin/python
    [ -x "$PYTHON" ] || die "no Python environment in $ENVIRONMENT: run scripts/setup.sh first"
}

# are_there PROGRAM...: whether all are installed.
are_there() {
    local program
    for program in "$@"; do
        command -v "$program" >/dev/null || return 1
    done
}

up() {
    local start=$EPOCHREALTIME packages
    find_python
    [ ${#STATE} -le 70 ] || die "MEGATRON_ENERGY_TESTBED '$STATE': sockets below it need a path of at most 70 characters"
    if is_up && [ "$(cat "$STATE/settings" 2>/dev/null)" = "$(settings)" ]; then
        say "is up: export SLURM_CONF=$SLURM_CONF"
        return
    fi
    [ ! -e "$STATE" ] || down
    are_there slurmctld slurmd sinfo munged ||
        install_system_package "Slurm or munge" slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge
    packages=$(seconds_since "$start")
    trap 'stop_everything' EXIT
    write_configuration
    start_everything
    trap - EXIT
    settings >"$STATE/settings"
    say "$NODES nodes with $GPUS_PER_NODE emulated GPUs each are up after $(seconds_since "$start") s ($packages s of them for packages)"
    say "use it: export SLURM_CONF=$SLURM_CONF"
}

down() {
    local start=$EPOCHREALTIME
    if [ ! -e "$STATE" ]; then
        say "is not up"
        return
    fi
    [ -f "$STATE/.testbed" ] || die "$STATE was not made by this script: set MEGATRON_ENERGY_TESTBED to another folder"
    stop_everything
    rm -rf "$STATE"
    say "down after $(seconds_since "$start") s, nothing is left of it"
}

status() {
    if ! is_up; then
        say "is not up"
        return 1
    fi
    sinfo --Node --format '%N %t %G'
    say "use it: export SLURM_CONF=$SLURM_CONF"
}

action=${1:-}
[ $# -eq 0 ] || shift
while [ $# -gt 0 ]; do
    case $1 in
        --nodes) NODES=${2:-} && shift ;;
        --gpus) GPUS_PER_NODE=${2:-} && shift ;;
        --system) ALLOW_SYSTEM=true ;;
        *) die "no option $1: use --nodes N, --gpus N, --system" ;;
    esac
    shift || break
done
case $action in
    up | down | status)
        check_options
        "$action"
        ;;
    *) die "no action '$action': use up, down or status" ;;
esac
