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
# The ten seconds do not grow with the timeout.
link_goes_down_under_a_longer_timeout() {
  local short=(--set dist_env.timeout_minutes=0.67) bound=50
  link_goes_down
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
    *"*:"*|*"0.0.0.0:"*|*"[::]:"*) fail 0 "rank 0 listens on every interface while hosts knock: $open" ;;
    *10.70.0.1*10.70.0.1*10.70.0.1*) echo "ok: $name: rank 0 listens at $open" ;;
    *) fail 0 "store, door and packets are not at 10.70.0.1: $open" ;;
  esac
  finish; in_time
  for rank in 0 1; do expect $rank 4 "error[E0502]: rank "; expect $rank 4 "cannot connect to rank "; done
}
# The look, which waits for packets that do not pass, loses the store, too.
knocks() { [ -n "$(on hostb ss -tnH state syn-sent 'dport != :29555')" ]; }
link_is_lost_while_hosts_knock() {
  two_hosts
  drop hosta 10.70.0.2 "tcp dport != 29555 tcp flags & (syn|ack) == syn"; drop hostb 10.70.0.1 "tcp dport != 29555 tcp flags & (syn|ack) == syn"
  two_ranks
  await 60 knocks || fail 1 "hostb does not knock"
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
host_is_missing() {
  two_hosts
  start hosta 0 2 10.70.0.1 -- "${short[@]}"
  finish; in_time
  expect 0 4 "error[E0502]: all timed out after 12"; expect 0 4 " s at 10.70.0.1:29555: there is no rank 1 of 2"
}
first_host_is_missing() {
  two_hosts
  start hostb 1 2 10.70.0.1 -- "${short[@]}"
  finish; in_time
  expect 1 4 "error[E0502]: rank 1 could not reach the store of rank 0 at 10.70.0.1:29555"
}
# Its address answers to nobody: no host has it.
first_host_is_off() {
  two_hosts
  start hostb 1 2 10.70.0.9 -- "${short[@]}"
  finish; in_time
  expect 1 4 "error[E0502]: rank 1 could not reach the store of rank 0 at 10.70.0.9:29555"
}
config_differs() {
  two_hosts
  start hosta 0 2 10.70.0.1 -- "${short[@]}"; start hostb 1 2 10.70.0.1 -- "${short[@]}" --set optimizer.lr=2e-3
  finish; in_time
  for rank in 0 1; do expect $rank 4 "error[E0503]: rank 1 has optimizer.lr 0.002"; done
}

all="host_is_missing first_host_is_missing first_host_is_off config_differs link_goes_down link_goes_down_under_a_longer_timeout"
if command -v nft > /dev/null; then all="$all firewall_shuts_a_running_job firewall_before_the_groups link_is_lost_while_hosts_knock firewall_before_the_store"
elif [ $# = 0 ]; then cannot "nft, which the cases with a firewall need, is not installed"; fi
run_cases "$all" "$@"
