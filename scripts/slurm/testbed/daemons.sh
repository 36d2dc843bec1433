# shellcheck shell=bash
# Starts and stops the daemons of the test bed, by process id. Needs messages.sh and what configuration.sh needs.

START_S=20
STOP_S=20

# alive PID: whether the process is there and is no zombie.
alive() {
    [ -d "/proc/$1" ] && ! grep -q '^State:.Z' "/proc/$1/status" 2>/dev/null
}

# is_ours PID: whether a process belongs to this test bed: its command line or its environment names the folder.
is_ours() {
    tr '\0' '\n' 2>/dev/null <"/proc/$1/cmdline" | grep -qF "$STATE" || tr '\0' '\n' 2>/dev/null <"/proc/$1/environ" | grep -qxF "SLURM_CONF=$SLURM_CONF"
}

# our_processes PIDFILE...: ids of the daemons that are running.
our_processes() {
    local file pid
    for file in "$@"; do
        pid=$(cat "$file" 2>/dev/null) || continue
        if [ -n "$pid" ] && alive "$pid" && is_ours "$pid"; then
            echo "$pid"
        fi
    done
}

# wait_until SECONDS COMMAND...: whether the command succeeded within that time.
wait_until() {
    local until=$((SECONDS + $1))
    shift
    until "$@"; do
        [ "$SECONDS" -lt "$until" ] || return 1
        sleep 0.05
    done
}

is_up() {
    [ -f "$STATE/settings" ] && [ -n "$(our_processes "$STATE/controller/pid")" ] &&
        [ "$(our_processes "$STATE"/n*/slurmd.pid "$STATE"/n*/clockd.pid | wc -l)" = $((2 * $(head -n 1 "$STATE/settings"))) ] &&
        timeout 5 sinfo >/dev/null 2>&1
}

# told FILE: the last lines of a log, for who has to find out why something did not start.
told() {
    tail -n 8 "$1" >&2 2>/dev/null || true
}

start_munge() {
    quietly "starting munged" runuser -u munge -- munged --key-file="$STATE/munge/key" --socket="$STATE/munge/socket" \
        --pid-file="$STATE/munge/pid" --log-file="$STATE/munge/log" --seed-file="$STATE/munge/seed"
    wait_until "$START_S" test -S "$STATE/munge/socket" || die "munged does not answer: see $STATE/munge/log"
}

# start_clockd NODE: in a session of its own, so that a terminal's Ctrl-C does not reach it.
start_clockd() {
    (
        export SLURMD_NODENAME=$1
        # shellcheck source=/dev/null
        . "$STATE/node.sh"
        # shellcheck disable=SC2086  # several options
        setsid "$PYTHON" -m megatron_energy.clockd run --socket "$MEGATRON_ENERGY_CLOCKD" $CLOCKD_FILES \
            </dev/null >>"$STATE/log/clockd.$1.log" 2>&1 &
        echo $! >"$STATE/$1/clockd.pid"
    )
}

nodes_idle() {
    [ "$(sinfo --noheader --states idle --format %D 2>/dev/null)" = "$NODES" ]
}

start_everything() {
    local node
    start_munge
    for node in $(node_names); do
        start_clockd "$node"
    done
    quietly "starting slurmctld" slurmctld -f "$SLURM_CONF"
    for node in $(node_names); do
        quietly "starting slurmd on $node" slurmd -f "$SLURM_CONF" -N "$node"
    done
    for node in $(node_names); do
        if ! wait_until "$START_S" test -S "$STATE/$node/clockd.sock"; then
            told "$STATE/log/clockd.$node.log"
            die "clockd of $node does not start; its last lines stand above"
        fi
    done
    if ! wait_until "$START_S" nodes_idle; then
        told "$STATE/log/slurmctld.log"
        die "the nodes do not become idle; the last lines of slurmctld stand above"
    fi
}

# step_processes: slurmstepd and what they started, where the environment names this test bed; not this script nor who called it.
step_processes() {
    local folder name
    for folder in /proc/[0-9]*; do
        if read -r name 2>/dev/null <"$folder/comm" && [ "$name" = slurmstepd ] && is_ours "${folder#/proc/}"; then
            echo "${folder#/proc/}"
        fi
    done
}

no_steps() {
    [ -z "$(step_processes)" ]
}

# end PID...: SIGTERM, and SIGKILL to what is left.
end() {
    [ $# -gt 0 ] || return 0
    kill "$@" 2>/dev/null || true
    wait_until "$STOP_S" all_ended "$@" || kill -KILL "$@" 2>/dev/null || true
}

all_ended() {
    local pid
    for pid in "$@"; do
        ! alive "$pid" || return 1
    done
}

# Jobs first, so that their Epilogs run; munge last, since the others need it.
stop_everything() {
    if [ -n "$(our_processes "$STATE/controller/pid")" ]; then
        timeout 10 scancel --partition=main --quiet 2>/dev/null || true
        wait_until "$STOP_S" no_steps || true
    fi
    # shellcheck disable=SC2046  # one word per process
    {
        end $(step_processes)
        end $(our_processes "$STATE"/n*/slurmd.pid "$STATE/controller/pid")
        end $(our_processes "$STATE"/n*/clockd.pid)
        end $(our_processes "$STATE/munge/pid")
    }
}
