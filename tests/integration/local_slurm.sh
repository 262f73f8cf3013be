#!/usr/bin/env bash
# A real SLURM of one node on this machine, on loopback only, without systemd and cgroups.
#   local_slurm.sh start|stop|status FOLDER      then: export SLURM_CONF=FOLDER/slurm.conf
# Needs Debian's slurmctld slurmd slurm-client munge. LOCAL_SLURM_PORT and the one after it are used.
set -euo pipefail
command=${1:?start, stop or status}
folder=$(realpath -m "${2:?a folder of its own}")
port=${LOCAL_SLURM_PORT:-26817}
export SLURM_CONF=$folder/slurm.conf
PATH=$PATH:/usr/sbin:/sbin

alive() { # a killed process may stay as a zombie, so signal 0 does not tell
  local pid
  pid=$(cat "$folder/$1.pid" 2>/dev/null) && grep -qs '^State:.[^ZX]' "/proc/$pid/status"
}

idle() { [ "$(sinfo -h -o %T)" = idle ]; }

wait_for() {
  for _ in $(seq 300); do
    "${@:2}" &>/dev/null && return
    sleep 0.1
  done
  echo "$1 did not come up:" >&2
  tail -n 8 "$folder"/*.log >&2
  return 1
}

configure() {
  local host memory cores
  cores=$(getconf _NPROCESSORS_ONLN) # nproc goes by OMP_NUM_THREADS
  cores=$((cores < 2 ? 2 : cores))
  host=$(hostname -s)
  memory=$(awk '/MemTotal/ {print int($2 / 1024 * 0.9)}' /proc/meminfo)
  # NoInAddrAny keeps the daemons on loopback. A requeued job waits for its old credential to
  # expire: 5 s is the least. Jobs stay visible after their end, as they do on a cluster.
  cat > "$SLURM_CONF" <<CONF
ClusterName=local
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthInfo=socket=$folder/munge/socket,cred_expire=5
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=512
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=5
MinJobAge=3600
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 CPUs=$cores RealMemory=$memory
PartitionName=main Nodes=n1 Default=YES MaxTime=INFINITE
CONF
}

start() {
  if alive slurmctld; then
    echo "already running in $folder"
    return
  fi
  rm -rf "$folder/spool"
  mkdir -p "$folder"/{munge,state,spool}
  chmod 755 "$folder" "$folder/munge"
  chmod 700 "$folder"/{state,spool}
  [ -s "$folder/munge.key" ] || (umask 077; head -c 128 /dev/urandom > "$folder/munge.key")
  configure
  munged --key-file="$folder/munge.key" --socket="$folder/munge/socket" \
    --pid-file="$folder/munged.pid" --seed-file="$folder/munge.seed" --log-file="$folder/munged.log"
  wait_for munged munge --socket="$folder/munge/socket" -n
  slurmctld -c # drops the jobs of an earlier one
  wait_for slurmctld scontrol ping
  slurmd -c -N n1
  wait_for slurmd idle
}

stop() {
  if alive slurmctld; then
    scancel --full -u "$(id -un)" || true
    for _ in $(seq 80); do
      [ -z "$(squeue -h)" ] && break
      sleep 0.1
    done
  fi
  for daemon in slurmd slurmctld munged; do
    if alive $daemon; then
      kill "$(cat "$folder/$daemon.pid")"
      for _ in $(seq 50); do
        alive $daemon || break
        sleep 0.1
      done
    fi
    if alive $daemon; then kill -9 "$(cat "$folder/$daemon.pid")"; fi
  done
}

case $command in
  start) start ;;
  stop) stop ;;
  status) sinfo -N -l; squeue ;;
  *) exit 2 ;;
esac
