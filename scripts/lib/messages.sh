# shellcheck shell=bash
# How these scripts talk: one line for what goes on, one line for what went wrong and what to do.

# say TEXT...: one line of progress.
say() {
    printf '%s: %s\n' "${0##*/}" "$*"
}

# show_help: the comment at the head of the script; exit status 0.
show_help() {
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
    exit 0
}

# die TEXT...: one line that says what is wrong and what to do; exit status 2.
die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 2
}

# quietly WHAT COMMAND...: runs a command; only where it fails are its last lines shown.
quietly() {
    local what=$1 log
    shift
    log=$(mktemp)
    if "$@" >"$log" 2>&1 </dev/null; then
        rm -f "$log"
        return
    fi
    tail -n 12 "$log" >&2
    die "$what failed; its last lines stand above, all of them in $log"
}
