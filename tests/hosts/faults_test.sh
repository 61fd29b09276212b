#!/bin/bash
# What goes wrong between hosts (hosts.sh): each ends all ranks within the timeout and ten seconds, with its cause on every host.
#
#   tests/hosts/faults_test.sh build/bin/meshwright [CASE ...]
. "$(dirname "$0")/hosts.sh" "$1"; shift

timeout_seconds=12
short=(--set dist_env.timeout_minutes=0.2)
bound=$((timeout_seconds + 10))
long=(--set step_scheduler.max_steps=1000000)
two_ranks() {  # ARGUMENT...: of both
  start hosta 0 2 10.70.0.1 -- "${short[@]}" "$@"; start hostb 1 2 10.70.0.1 -- "${short[@]}" "$@"
}
deps=${MESHWRIGHT_DEPS:-$source_dir/.deps}/python
in_time() { local label; for label in "${!code[@]}"; do expect_within $label $bound; done; }
two_that_train() {
  two_hosts
  two_ranks "${long[@]}"
  await 100 trains || fail 0 "no step was made"
}
# What a host gets from the other one is lost, whatever it is: HOST ADDRESS [WHAT].
drop() {
  on $1 nft add table inet test
  on $1 nft add chain inet test input '{ type filter hook input priority 0; }'
  on $1 nft add rule inet test input ip saddr $2 ${3:-} drop
}

# No packet says that the other host is gone.
link_goes_down() {
  two_that_train
  since=$(date +%s)
  on hostb ip link set net0 down
  finish; in_time
  expect 0 6 "rank 1 on hostb (10.70.0.2)"; expect 1 6 "rank 0 on hosta (10.70.0.1)"
}
# All four end, whoever keeps the store and whoever shares a host with whom.
# Gradients of 15 MB, which take six seconds of this link: it is cut while they cross.
link_goes_down_in_a_large_sum() {
  command -v tc > /dev/null || { cannot "tc is not installed"; return; }
  two_hosts
  local host
  for host in hosta hostb; do on $host tc qdisc add dev net0 root tbf rate 20mbit burst 32kb latency 50ms; done
  sed -e 's/"hidden_size": [0-9]*/"hidden_size": 384/' -e 's/"intermediate_size": [0-9]*/"intermediate_size": 1024/' \
    "$source_dir/configs/models/llama-tiny.json" > "$folder/large.json"
  two_ranks "${long[@]}" --set model.config="$folder/large.json"
  await 100 trains || fail 0 "no step was made"
  sleep 2
  since=$(date +%s)
  on hostb ip link set net0 down
  finish; in_time
  expect 0 6 "rank 1 on hostb (10.70.0.2)"; expect 1 6 "rank 0 on hosta (10.70.0.1)"
  grep -qE 'all_reduce of [0-9.]* MB' "$folder/$name.0" && echo "ok: $name: in a sum of some MB" || fail 0 "it was not cut in the sum"
}
link_goes_down_between_hosts_of_two_ranks() {
  two_hosts
  local rank host
  for rank in 0 1 2 3; do
    [ $rank -lt 2 ] && host=hosta || host=hostb
    start $host $rank 4 10.70.0.1 LOCAL_RANK=$((rank % 2)) LOCAL_WORLD_SIZE=2 -- "${short[@]}" "${long[@]}"
  done
  await 100 trains || fail 0 "no step was made"
  since=$(date +%s)
  on hostb ip link set net0 down
  finish; in_time
  # Who misses whom depends on the collective, and on who ends first.
  for rank in 0 1 2 3; do expect $rank 6 "error[E"; done
  if cat "$folder/$name".[01] | grep -qE 'no word from ranks? \[?[23]'; then echo "ok: $name: hosta misses a rank of hostb"; else fail 0 "hosta misses no rank of hostb"; fi
}
# An address of IPv6 goes with its link.
link_goes_down_over_ipv6() {
  make_switch
  make_host hosta; make_host hostb
  join hosta fd00:70::1/64; join hostb fd00:70::2/64
  start hosta 0 2 fd00:70::1 -- "${short[@]}" "${long[@]}"; start hostb 1 2 fd00:70::1 -- "${short[@]}" "${long[@]}"
  await 100 trains || fail 0 "no step was made"
  since=$(date +%s)
  on hosta ip link set net0 down
  finish; in_time
  expect 0 6 "rank 1"; expect 1 6 "rank 0"
}
ranks_of() { local p; for p in $(processes_of $1); do [ "$(readlink /proc/$p/exe)" = "$program" ] && echo $p; done 2> /dev/null; }
# The agents of both hosts, which have nothing left to do.
end_agents() { local host p; for host in hosta hostb; do for p in $(processes_of $host); do [[ "$(readlink /proc/$p/exe)" == *python* ]] && kill -9 $p; done; done 2> /dev/null; }
# The store of rank 0 is beside torchrun's, at an address that goes with the link; torchrun's end when its ranks have ended.
link_goes_down_under_torchrun_over_ipv6() {
  make_switch
  make_host hosta; make_host hostb
  join hosta fd00:70::1/64; join hostb fd00:70::2/64
  names hosta "fd00:70::1 hosta\nfd00:70::2 hostb\n"; names hostb "fd00:70::1 hosta\nfd00:70::2 hostb\n"
  local -x MESHWRIGHT_JOB_SECRET=0123456789abcdef0
  local node host
  for node in 0 1; do
    [ $node = 0 ] && host=hosta || host=hostb
    launch torchrun$node $host OMP_NUM_THREADS=1 PYTHONPATH="$deps${PYTHONPATH:+:$PYTHONPATH}" python3 -m torch.distributed.run --no-python \
      --nnodes 2 --node-rank $node --nproc-per-node 2 --master-addr hosta --master-port 29555 \
      "$program" train "$job" --set run.name=$name "${short[@]}" "${long[@]}"
  done
  await 100 trains || fail torchrun0 "no step was made"
  since=$(date +%s)
  on hosta ip link set net0 down
  # The ranks themselves have to end; their agents, which look for each other, may take longer.
  local left ended=
  while [ $(($(date +%s) - since)) -le $((3 * bound)) ]; do
    left=$(for host in hosta hostb; do ranks_of $host; done)
    [ -n "$left" ] || { ended=$(($(date +%s) - since)); break; }
    sleep 0.2
  done
  local most=$bound
  [ "$(awk -v cores="$(nproc)" '{ print ($1 > 2 * cores) }' /proc/loadavg)" = 0 ] || most=$((3 * bound))
  if [ -n "$ended" ] && [ $ended -le $most ]; then echo "ok: $name: all ranks ended in $ended s"; else fail torchrun0 "ranks took ${ended:-more than $((3 * bound))} s, wanted at most $most"; fi
  if grep -qF 'error[E' "$folder/$name.torchrun0" && grep -qF 'error[E' "$folder/$name.torchrun1"; then echo "ok: $name: both hosts say why"; else fail torchrun1 "a host does not say why"; fi
  end_agents
  finish
}
firewall_shuts_a_running_job() {
  two_that_train
  since=$(date +%s)
  drop hosta 10.70.0.2; drop hostb 10.70.0.1
  finish; in_time
  expect 0 6 "rank 1 on hostb (10.70.0.2)"; expect 1 6 "rank 0 on hosta (10.70.0.1)"
}
# Only the store's port is open: the ranks meet, and are told which connections are lost.
firewall_before_the_groups() {
  two_hosts
  drop hosta 10.70.0.2 "tcp dport != 29555 tcp flags & (syn|ack) == syn"; drop hostb 10.70.0.1 "tcp dport != 29555 tcp flags & (syn|ack) == syn"
  two_ranks
  local open
  for _ in $(seq 100); do open=$(on hosta ss -lntuH | awk '{ print $5 }' | grep -v ':29555$'); [ -n "$open" ] && break; sleep 0.1; done
  sleep 0.5; open=$(on hosta ss -lntuH | awk '{ print $5 }' | sort | tr '\n' ' ')
  case $open in
    *"*:"*|*"0.0.0.0:"*|*"[::]:"*) fail 0 "rank 0 listens on every interface while hosts probe: $open" ;;
    *10.70.0.1*10.70.0.1*10.70.0.1*) echo "ok: $name: rank 0 listens at $open" ;;
    *) fail 0 "store, listener and packets are not at 10.70.0.1: $open" ;;
  esac
  finish; in_time
  for rank in 0 1; do expect $rank 4 "error[E0502]: rank "; expect $rank 4 "cannot connect to rank "; done
}
# The look, which waits for packets that do not pass, loses the store, too.
probes() { [ -n "$(on hostb ss -tnH state syn-sent 'dport != :29555')" ]; }
link_is_lost_while_hosts_probe() {
  two_hosts
  drop hosta 10.70.0.2 "tcp dport != 29555 tcp flags & (syn|ack) == syn"; drop hostb 10.70.0.1 "tcp dport != 29555 tcp flags & (syn|ack) == syn"
  two_ranks
  await 60 probes || fail 1 "hostb does not probe"
  since=$(date +%s)
  drop hosta 10.70.0.2; drop hostb 10.70.0.1
  finish; in_time
  expect 0 4 "error[E0502]: while hosts looked whether they reach each other, no word came from rank 1 on hostb (10.70.0.2)"
  expect 1 4 "error[E0502]: rank 1 could not learn the addresses of the others: the store of rank 0 did not answer"
}
firewall_before_the_store() {
  two_hosts
  drop hosta 10.70.0.2
  two_ranks
  finish; in_time
  expect 0 4 "there is no rank 1 of 2"; expect 1 4 "rank 1 could not reach the store of rank 0 at 10.70.0.1:29555"
}
first_host_is_missing() {
  two_hosts
  start hostb 1 2 10.70.0.1 -- "${short[@]}"
  finish; in_time
  expect 1 4 "error[E0502]: rank 1 could not reach the store of rank 0 at 10.70.0.1:29555"
}

all="first_host_is_missing link_goes_down link_goes_down_in_a_large_sum link_goes_down_between_hosts_of_two_ranks"
if [ -e /proc/net/if_inet6 ]; then
  all="$all link_goes_down_over_ipv6"
  if PYTHONPATH="$deps" python3 -c "import torch.distributed.run" 2> /dev/null; then all="$all link_goes_down_under_torchrun_over_ipv6"
  elif [ $# = 0 ]; then cannot "torchrun, which a case needs, is not installed"; fi
elif [ $# = 0 ]; then cannot "this machine has no IPv6"; fi
if command -v nft > /dev/null; then all="$all firewall_shuts_a_running_job firewall_before_the_groups link_is_lost_while_hosts_probe firewall_before_the_store"
elif [ $# = 0 ]; then cannot "nft, which the cases with a firewall need, is not installed"; fi
run_cases "$all" "$@"
