# Hosts made of network namespaces with names, interfaces and routes as several machines have them, and ranks on them. Sourced by the tests
# of this folder: `. hosts.sh PROGRAM`. Everything lives in namespaces that end with the processes in them; nothing of the machine is changed,
# and packets stay among the test's own hosts. Exit status 77: it could not run here, or some of its cases could not.
set -u
PATH=$PATH:/usr/sbin:/sbin
program=$(realpath "$1")
source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

skip() { echo "SKIPPED: $*: the tests of several hosts did not run"; exit 77; }
# WORDS: what a case lacks that therefore does not run.
left_out=0
cannot() { left_out=$((left_out + 1)); echo "SKIPPED: ${name:+$name: }$*"; }
need() { local tool; for tool in "$@"; do command -v "$tool" > /dev/null || skip "$tool is not installed"; done; }
[ "$(id -u)" = 0 ] || skip "network namespaces need root"
need ip ss unshare nsenter
unshare -n -m -u true 2> /dev/null || skip "this machine makes no namespaces"

folder=$(mktemp -d /tmp/meshwright_hosts.XXXXXX)
chmod 755 "$folder"
declare -A keeper   # the process that keeps a host's namespaces
failures=0
trap 'clear_hosts; rm -rf "$folder"' EXIT
trap 'exit 143' INT TERM HUP

on() { local host=$1; shift; nsenter -t ${keeper[$host]} -n -m -u -- "$@"; }
make_host() {  # NAME: a host with a loopback interface and no other
  unshare -n -m -u --propagation private sleep 600 &
  keeper[$1]=$!
  for _ in $(seq 100); do
    [ "$(readlink /proc/${keeper[$1]}/ns/net)" != "$(readlink /proc/self/ns/net)" ] && [ "$(readlink /proc/${keeper[$1]}/ns/uts)" != "$(readlink /proc/self/ns/uts)" ] && break
    sleep 0.05
  done
  on $1 hostname "$1"
  on $1 mount -t tmpfs tmpfs /dev/shm  # hosts share no memory
  on $1 ip link set lo up
}
# NAME ADDRESS/BITS: joins the host to a switch, as its interface net0.
joined=0
join() {
  joined=$((joined + 1))
  nsenter -t ${keeper[switch]} -n ip link add port$joined type veth peer name net0 netns ${keeper[$1]}
  nsenter -t ${keeper[switch]} -n ip link set port$joined master br0 up
  on $1 ip addr add "$2" dev net0 $([[ $2 == *:* ]] && echo nodad)
  on $1 ip link set net0 up
}
make_switch() {
  make_host switch
  nsenter -t ${keeper[switch]} -n ip link add br0 type bridge
  nsenter -t ${keeper[switch]} -n ip link set br0 up
}
names() {  # HOST LINES: its /etc/hosts
  printf '%b' "127.0.0.1 localhost\n$2" > "$folder/hosts_$1"
  on $1 mount --bind "$folder/hosts_$1" /etc/hosts
}
# The processes of a host, by the namespace that they are in: no other process is found.
processes_of() {
  local net p
  net=$(readlink /proc/${keeper[$1]}/ns/net) || return 0
  [ "$net" != "$(readlink /proc/self/ns/net)" ] || return 0
  for p in /proc/[0-9]*; do [ "$(readlink $p/ns/net 2> /dev/null)" = "$net" ] && echo ${p#/proc/}; done
}
clear_hosts() {
  local host
  for host in "${!keeper[@]}"; do kill -9 $(processes_of $host) ${keeper[$host]}; wait ${keeper[$host]}; done 2> /dev/null
  keeper=()
}

two_hosts() {
  make_switch
  make_host hosta; make_host hostb
  join hosta 10.70.0.1/24; join hostb 10.70.0.2/24
}
two_named_hosts() {
  two_hosts
  local host
  for host in hosta hostb; do names $host "10.70.0.1 hosta\n10.70.0.2 hostb\n"; done
}

job=$folder/job.toml
cat > "$job" <<EOF
schema = 1
[run]
threads = 1
dir = "$folder/runs"
[model]
config = "$source_dir/configs/models/llama-tiny.json"
[distributed]
strategy = "ddp"
[step_scheduler]
global_batch_size = 12
local_batch_size = 1
max_steps = 2
[dist_env]
device = "cpu"
timeout_minutes = 1
[dataset]
kind = "mock"
seq_len = 16
EOF

declare -A started began code lasted   # by label: a rank's number, or a launcher's name
launch() {  # LABEL HOST COMMAND...: started on the host; what it prints goes to $folder/$name.LABEL
  local label=$1 host=$2; shift 2
  on $host timeout -k 5 150 env -u GLOO_SOCKET_IFNAME "$@" > "$folder/$name.$label" 2>&1 &
  started[$label]=$!
  began[$label]=$(date +%s)
}
start() {  # HOST RANK WORLD MASTER [VAR=VALUE ...] -- [ARGUMENT ...]
  local host=$1 rank=$2 world=$3 master=$4; shift 4
  local variables=()
  while [ $# -gt 0 ] && [ "$1" != -- ]; do variables+=("$1"); shift; done
  shift
  launch $rank $host RANK=$rank WORLD_SIZE=$world LOCAL_RANK=0 MASTER_ADDR=$master MASTER_PORT=29555 \
    "${variables[@]}" "$program" train "$job" --set run.name=$name "$@"
}
finish() {
  local label last
  code=(); lasted=()
  while [ ${#started[@]} -gt 0 ]; do  # in the order in which they end, so that each has its own time
    for label in "${!started[@]}"; do
      kill -0 ${started[$label]} 2> /dev/null && continue
      wait ${started[$label]}; code[$label]=$?
      lasted[$label]=$(($(date +%s) - began[$label]))
      unset "started[$label]"
    done
    sleep 0.1
  done
}
fail() {  # LABEL WORDS: with what it printed
  failures=$((failures + 1))
  echo "FAILED: $name: $2"
  [ ! -e "$folder/$name.$1" ] || sed 's/^/    /' "$folder/$name.$1" | cut -c1-400
}
called() { [[ $1 =~ ^[0-9]+$ ]] && echo "rank $1" || echo "$1"; }
expect() {  # LABEL CODE WORDS
  if [ "${code[$1]}" != "$2" ] || { [ -n "$3" ] && ! grep -qF -- "$3" "$folder/$name.$1"; }; then
    fail $1 "$(called $1) ended with ${code[$1]}, wanted $2 and: $3"
  else
    echo "ok: $name: $(called $1): ${3:-exit status $2}"
  fi
}
# LABEL TIMES WORDS: how many lines have the words; so often a job prints what its rank 0 alone says.
expect_times() {
  local found
  found=$(grep -cF -- "$3" "$folder/$name.$1")
  if [ "$found" = "$2" ]; then echo "ok: $name: $(called $1): $2 x $3"; else fail $1 "$(called $1) has $found lines, wanted $2, with: $3"; fi
}
# LABEL SECONDS since $since (by default since it was started). A machine that has much else to do gets three times as long.
expect_within() {
  local seconds=$((${began[$1]} + ${lasted[$1]} - ${since:-${began[$1]}})) most=$2 busy=
  [ "$(awk -v cores="$(nproc)" '{ print ($1 > 2 * cores) }' /proc/loadavg)" = 0 ] || { most=$((3 * $2)); busy=" (busy: bound $most s)"; }
  if [ $seconds -le $most ]; then echo "ok: $name: $(called $1) ended in $seconds s$busy"; else fail $1 "$(called $1) took $seconds s, wanted at most $most"; fi
}
await() {  # SECONDS COMMAND...: until it holds
  local end=$(($(date +%s) + $1)); shift
  until "$@"; do [ $(date +%s) -lt $end ] || return 1; sleep 0.2; done
}
trains() { [ -s "$folder/runs/${1:-$name}/metrics.jsonl" ]; }  # [RUN]: it has made a step
completed_steps() { grep -c '"loss"' "$folder/runs/$name/metrics.jsonl" 2> /dev/null; }
further() { [ "$(completed_steps)" -gt $1 ]; }  # STEPS: it has made more
long=(--set step_scheduler.max_steps=100000)
tell_to_end() {  # HOST PROGRAM: SIGUSR1 to what runs it there, when the ranks train
  await 100 trains || { echo "no step was made"; return; }
  local p
  for p in $(processes_of $1); do [ "$(readlink /proc/$p/exe)" = "$(readlink -f "$2")" ] && kill -USR1 $p; done
}
saved() {  # LABEL WORDS: with what names the signal
  expect $1 75 "$2: saved step"
  [ -e "$folder/runs/$name/checkpoints/latest" ] && echo "ok: $name: saved" || fail $1 "nothing was saved"
}
# SECRET HOST...: it is on no command line of a host, where each of its users could read it, and a rank is there.
on_no_command_line() {
  local secret=$1 host p ranks shown; shift
  for host in "$@"; do
    ranks=0 shown=
    for p in $(processes_of $host); do
      [ "$(readlink /proc/$p/exe)" = "$program" ] && ranks=$((ranks + 1))
      grep -qaF -- "$secret" /proc/$p/cmdline && shown+="$p ($(tr '\0' ' ' < /proc/$p/cmdline | cut -c1-80)) "
    done 2> /dev/null
    if [ $ranks = 0 ]; then fail "" "there is no rank on $host"
    elif [ -n "$shown" ]; then fail "" "the secret is on command lines of $host: $shown"
    else echo "ok: $name: the secret is on no command line of $host"; fi
  done
}

run_cases() {  # ALL [CASE ...], or ALL but CASE ...
  local all=$1; shift
  if [ "${1-}" = but ]; then
    shift
    local without=" $* " left=
    for name in $all; do [[ $without == *" $name "* ]] || left="$left $name"; done
    set -- $left
  fi
  for name in ${*:-$all}; do
    since=
    $name
    clear_hosts
  done
  [ $failures = 0 ] || exit 1
  [ $left_out = 0 ] || { echo "SKIPPED: what is said above did not run; all other cases of several hosts hold"; exit 77; }
  echo "all cases of several hosts hold"
  exit 0
}
