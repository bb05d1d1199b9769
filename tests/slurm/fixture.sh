# shellcheck shell=bash
# SPDX-License-Identifier: MIT
# A Slurm of one node on this machine, to be sourced: munged, slurmctld and slurmd, with all their files in $slurm. Needs root
# and Debian's slurm-wlm. The node has 8 processors, however many the machine has. Ends with the script that sources it.
slurm=$(mktemp -d)
slurm_processes=()

slurm_end() {
    local process
    timeout 10 scancel --full -u root 2>/dev/null || true
    for process in "${slurm_processes[@]}"; do
        kill -9 "$process" 2>/dev/null || true
    done
    # Those of this slurmd: their files are in its folder.
    for process in $(pgrep slurmstepd); do
        ! grep -qzF "SLURM_CONF=$slurm/" "/proc/$process/environ" 2>/dev/null || kill -9 "$process" || true
    done
    rm -rf "$slurm"
}
trap slurm_end EXIT

# slurm_start NAME COMMAND...: in the background; what it says is in $slurm/NAME.log.
slurm_start() {
    local name=$1
    shift
    "$@" >"$slurm/$name.log" 2>&1 &
    slurm_processes+=($!)
}

# slurm_await TEXT COMMAND...: until it says this.
slurm_await() {
    local text=$1 i
    shift
    for ((i = 0; i < 300; i++)); do
        [[ $("$@" 2>/dev/null | grep -c -- "$text") -gt 0 ]] && return
        sleep 0.1
    done
    echo "slurm: '$*' does not say '$text':"
    "$@" || true
    tail -n 20 "$slurm"/*.log
    exit 1
}

chmod 755 "$slurm"
mkdir "$slurm/munge" "$slurm/state" "$slurm/spool"
head -c 1024 /dev/urandom >"$slurm/munge/key"
chmod 600 "$slurm/munge/key"
name=$(hostname -s)
cat >"$slurm/slurm.conf" <<TEXT
ClusterName=shoal
SlurmctldHost=$name(127.0.0.1)
SlurmUser=root
SlurmctldPort=26817
SlurmdPort=26818
AuthType=auth/munge
AuthInfo=socket=$slurm/munge/socket
CryptoType=crypto/munge
StateSaveLocation=$slurm/state
SlurmdSpoolDir=$slurm/spool
SlurmctldPidFile=$slurm/slurmctld.pid
SlurmdPidFile=$slurm/slurmd.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SchedulerParameters=batch_sched_delay=0,sched_interval=1
MpiDefault=none
ReturnToService=2
JobRequeue=1
KillWait=20
SlurmdTimeout=300
NodeName=$name NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=all Nodes=$name Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
TEXT
export SLURM_CONF=$slurm/slurm.conf
slurm_start munged munged --foreground --force --key-file="$slurm/munge/key" --socket="$slurm/munge/socket" \
    --pid-file="$slurm/munge/pid" --log-file="$slurm/munged.log" --seed-file="$slurm/munge/seed"
slurm_await "STATUS: *Success" sh -c "munge -n -S $slurm/munge/socket | unmunge -S $slurm/munge/socket"
slurm_start slurmctld slurmctld -D
slurm_start slurmd slurmd -D -N "$name"
slurm_await idle sinfo -h -o %T
