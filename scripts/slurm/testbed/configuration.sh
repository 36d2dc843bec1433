# shellcheck shell=bash
# The files of the test bed. Needs STATE, FIRST_PORT, NODES, GPUS_PER_NODE, PYTHON and ROOT.
#
#   slurm.conf, gres.conf, cgroup.conf      of Slurm
#   node.sh                                 what hooks and daemons of a node have in their environment
#   prolog, epilog, task_prolog             hand that to the scripts of scripts/slurm/hooks
#   munge/                                  key and socket of munge
#   gpus/                                   device files, and the state of the emulated GPUs
#   n1/ ...                                 per node: slurmd's spool, clockd's rules, socket and state, the jobs' GPUs
#   log/                                    what daemons say

EMULATED_GPU=a100-sxm4-80gb

# Two test beds with the same settings are the same.
settings() {
    printf '%s\n' "$NODES" "$GPUS_PER_NODE" "$FIRST_PORT" "$PYTHON" "$ROOT"
}

# node_names: n1 to nN, one a line.
node_names() {
    seq -f 'n%g' "$NODES"
}

write_configuration() {
    mkdir -p "$STATE" && chmod 755 "$STATE" && touch "$STATE/.testbed"
    mkdir -p "$STATE/log" "$STATE/munge" "$STATE/controller" "$STATE/gpus"
    chown slurm "$STATE/log" "$STATE/controller"
    make_munge_key
    make_gpus
    write_slurm_conf
    write_node_environment
    write_hooks
    local node
    for node in $(node_names); do
        mkdir -p "$STATE/$node/spool"
        write_clockd_rules "$node"
    done
}

make_munge_key() {
    (umask 077 && head -c 1024 /dev/urandom >"$STATE/munge/key")
    chown -R munge "$STATE/munge"
}

# Slurm wants character devices; these are the null device under other names. The emulated GPUs are open to every user, as real ones are
# for reading: emulation has no driver that would ask for privileges.
make_gpus() {
    local index node
    for index in $(seq 0 $((GPUS_PER_NODE - 1))); do
        mknod "$STATE/gpus/nvidia$index" c 1 3
    done
    for node in $(node_names); do
        "$PYTHON" - "$STATE/gpus" "$EMULATED_GPU" "$GPUS_PER_NODE" "$node" <<'END'
import sys
from pathlib import Path

from megatron_energy.emulation.state import NodeState, state_path

folder, model, count, node = sys.argv[1:]
NodeState.create(state_path(Path(folder), node), model, int(count), node=node).path.chmod(0o666)
END
    done
}

# Many slurmd on one host: each has its own name, port, spool and pid file (%n). Without accounting and control groups, so that a container
# will do. Slurm gives every node more CPUs than there are.
write_slurm_conf() {
    local host
    host=$(hostname -s)
    cat >"$STATE/slurm.conf" <<END
ClusterName=testbed
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$FIRST_PORT
SlurmUser=slurm
AuthType=auth/munge
AuthInfo=socket=$STATE/munge/socket,cred_expire=5
StateSaveLocation=$STATE/controller
SlurmdSpoolDir=$STATE/%n/spool
SlurmctldPidFile=$STATE/controller/pid
SlurmdPidFile=$STATE/%n/slurmd.pid
SlurmctldLogFile=$STATE/log/slurmctld.log
SlurmdLogFile=$STATE/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=5,bf_interval=2
SlurmdParameters=config_overrides
GresTypes=gpu
MpiDefault=none
ReturnToService=2
KillWait=5
MailProg=/bin/true
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
PrologFlags=Alloc
Prolog=$STATE/prolog
Epilog=$STATE/epilog
TaskProlog=$STATE/task_prolog
NodeName=n[1-$NODES] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((FIRST_PORT + 1))-$((FIRST_PORT + NODES))] CPUs=64 RealMemory=64000 Gres=gpu:a100:$GPUS_PER_NODE State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
    printf 'Name=gpu Type=a100 File=%s/gpus/nvidia[0-%d]\n' "$STATE" $((GPUS_PER_NODE - 1)) >"$STATE/gres.conf"
    printf 'CgroupPlugin=cgroup/v1\nConstrainDevices=no\n' >"$STATE/cgroup.conf"
}

# All nodes share one host name and one file system: what belongs to a node goes by SLURMD_NODENAME.
write_node_environment() {
    cat >"$STATE/node.sh" <<END
node=$STATE/\$SLURMD_NODENAME
export PATH=$(dirname "$PYTHON"):/usr/sbin:/usr/bin:/sbin:/bin
export PYTHONPATH=$ROOT/megatron_energy/emulation/startup:$ROOT
export MEGATRON_ENERGY_EMULATED=$EMULATED_GPU:$GPUS_PER_NODE MEGATRON_ENERGY_EMULATED_DIR=$STATE/gpus
export MEGATRON_ENERGY_CLOCKD=\$node/clockd.sock MEGATRON_ENERGY_JOBS=\$node/jobs
CLOCKD_FILES="--rules \$node/clockd.ini --state-dir \$node/clockd --audit-log \$node/clockd.jsonl"
END
}

# write_hooks: the site's own files around the examples, as a site would name its paths.
write_hooks() {
    local hook
    for hook in prolog epilog; do
        cat >"$STATE/$hook" <<END
#!/bin/sh
. $STATE/node.sh
export CLOCKD_FILES
exec >>$STATE/log/hooks.\$SLURMD_NODENAME.log 2>&1
echo "$hook of job \$SLURM_JOB_ID"
exec $ROOT/scripts/slurm/hooks/$hook.sh
END
    done
    cat >"$STATE/task_prolog" <<END
#!/bin/sh
. $STATE/node.sh
echo "export MEGATRON_ENERGY_EMULATED=\$MEGATRON_ENERGY_EMULATED"
echo "export MEGATRON_ENERGY_EMULATED_DIR=\$MEGATRON_ENERGY_EMULATED_DIR"
echo "export GLOO_SOCKET_IFNAME=lo"
exec $ROOT/scripts/slurm/hooks/task_prolog.sh
END
    chmod 755 "$STATE/prolog" "$STATE/epilog" "$STATE/task_prolog"
}

# write_clockd_rules NODE: everybody may control the GPUs of his job.
write_clockd_rules() {
    mkdir -p "$STATE/$1/jobs"
    cat >"$STATE/$1/clockd.ini" <<END
[clockd]
slurm_jobs = $STATE/$1/jobs

[rule jobs]
users = *
gpus = slurm-job
clocks_mhz = 210-1410
power_w = 100-400
END
}
