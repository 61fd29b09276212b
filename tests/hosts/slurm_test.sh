#!/bin/bash
# Slurm, started for real: a controller and two nodes or four, each on a host of its own (hosts.sh), with munge between them.
#
#   tests/hosts/slurm_test.sh build/bin/meshwright [CASE ...]
. "$(dirname "$0")/hosts.sh" "$1"; shift
need slurmctld slurmd srun sbatch scontrol scancel sinfo munged

export SLURM_CONF=$folder/slurm.conf
starts_here=   # Slurm's daemons have started
# The daemons stay in the foreground, so that they end with their host, and after a while in any case.
daemon() { local host=$1 log=$2; shift 2; on $host timeout -k 5 580 "$@" > "$folder/$log" 2>&1 & }
slurm() {  # [NODES]; false: they have started before, and do not now
  nodes=${1:-2}
  make_switch
  local node addresses=
  rm -rf "$folder"/{state,spool.*,munge}
  mkdir -p "$folder"/{state,munge}
  for ((node = 1; node <= nodes; ++node)); do addresses+="10.70.0.$node node$node\n"; done
  for ((node = 1; node <= nodes; ++node)); do
    make_host node$node
    join node$node 10.70.0.$node/24
    names node$node "$addresses"
    mkdir "$folder/spool.node$node"
  done
  (umask 077; head -c 1024 /dev/urandom > "$folder/munge/key")
  cat > "$SLURM_CONF" <<EOF
ClusterName=test
SlurmctldHost=node1
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# A job that is queued again waits for as long as credentials are good.
AuthInfo=socket=$folder/munge/socket,cred_expire=5
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool.%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
# A slow machine may take longer to save than the minute that the test gives a job.
OverTimeLimit=3
SlurmdParameters=config_overrides
$(for ((node = 1; node <= nodes; ++node)); do echo "NodeName=node$node NodeAddr=10.70.0.$node CPUs=2"; done)
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
EOF
  daemon node1 munged.log munged -F --num-threads=2 --key-file="$folder/munge/key" --socket="$folder/munge/socket" --pid-file="$folder/munge/pid" \
    --seed-file="$folder/munge/seed" --log-file="$folder/munge/log"
  await 10 test -S "$folder/munge/socket"
  daemon node1 slurmctld.log slurmctld -D
  for ((node = 1; node <= nodes; ++node)); do daemon node$node slurmd.node$node.log slurmd -D; done
  if await 30 all_idle; then starts_here=1; return 0; fi
  tail -n 5 "$folder"/*.log
  [ -n "$starts_here" ] || skip "Slurm's daemons do not start here"
  fail "" "Slurm's daemons, which started for an earlier case, do not start"
  return 1
}
all_idle() { [ "$(on node1 timeout 5 sinfo -h -t idle -o %D 2> /dev/null)" = "$nodes" ]; }
of_job() { on node1 timeout 10 scontrol -o show job $1 2> /dev/null | tr ' ' '\n' | sed -n "s/^$2=//p" | head -1; }  # ID FIELD
state() { of_job $1 JobState; }
in_state() { [[ $(state $1) == $2 ]]; }  # ID PATTERN
submit() {  # ARGUMENT...: of sbatch
  : > "$folder/$name.job"
  job_id=$(on node1 timeout 100 sbatch --parsable --output="$folder/$name.job" "$@") || fail "" "sbatch refused $*"
}
in_output() { grep -qF -- "$1" "$folder/$name.job"; }
wanted() {  # SECONDS WORDS COMMAND...: holds in time, or what the job printed is shown
  local seconds=$1 words=$2; shift 2
  if await $seconds "$@"; then echo "ok: $name: $words"; else fail job "not in $seconds s: $words (job $job_id is $(state $job_id))"; return 1; fi
}

# No variable is set by hand: the list of nodes, node[1-2], says who is first.
slurm_srun() {
  slurm || return
  launch srun node1 srun --nodes 2 --ntasks 4 --ntasks-per-node 2 "$program" train "$job" --set run.name=$name
  finish; expect srun 0 "ddp on 4 ranks"; expect_times srun 1 "done: 2 steps"
}
slurm_uneven() {
  slurm || return
  launch srun node1 srun --nodes 2 --ntasks 3 --distribution=block "$program" train "$job" --set run.name=$name
  finish; expect srun 0 "ddp on 3 ranks"; expect_times srun 1 "done: 2 steps"
}
# A secret reaches the ranks of both nodes by the environment alone.
slurm_with_a_secret() {
  slurm || return
  local -x MESHWRIGHT_JOB_SECRET=0123456789abcdef0
  launch srun node1 srun --export=ALL --nodes 2 --ntasks 2 --ntasks-per-node 1 "$program" train "$job" --set run.name=$name "${long[@]}"
  await 100 trains || fail srun "no step was made"
  on_no_command_line $MESHWRIGHT_JOB_SECRET node1 node2
  tell_to_end node2 "$program"
  finish
  saved srun "a signal to another rank"; expect_times srun 0 "the job has no secret"
}
# In the order of a file of hosts rank 0 is on node2, and nothing but the user tells the others.
slurm_by_a_file_of_hosts() {
  slurm || return
  printf 'node2\nnode1\n' > "$folder/order"
  launch srun node1 SLURM_HOSTFILE="$folder/order" srun --nodes 2 --ntasks 2 --distribution=arbitrary "$program" train "$job" --set run.name=$name
  launch told node1 SLURM_HOSTFILE="$folder/order" MASTER_ADDR=node2 srun --nodes 2 --ntasks 2 --distribution=arbitrary "$program" train "$job" --set run.name=$name
  finish
  expect srun 4 "error[E0501]: MASTER_ADDR is not set, and with SLURM_DISTRIBUTION = arbitrary rank 0 may be on any node of SLURM_STEP_NODELIST = node[1-2]"
  expect told 0 "ddp on 2 ranks"
}
# mpirun starts its daemon on node2 as a step of one task, and that is not the ranks' place.
slurm_with_mpirun() {
  command -v mpirun.openmpi > /dev/null || { cannot "mpirun.openmpi is not installed"; return; }
  slurm || return
  submit --nodes=2 --ntasks-per-node=2 --wait --wrap "mpirun.openmpi --allow-run-as-root --bind-to none -x MASTER_ADDR=node1 '$program' train '$job' --set run.name=$name"
  code[job]=$?
  expect job 0 "ddp on 4 ranks"; expect_times job 1 "done: 2 steps"
}
slurm_with_a_mistake() {
  slurm || return
  launch srun node1 srun --nodes 2 --ntasks 2 "$program" train "$job" --set run.name=$name --set optimizer.lr=-1
  finish; expect srun 2 "error[E0204]: optimizer.lr = -1"
}

# The recipe of the guide as it stands. Its time is made short when it trains: then Slurm sends SIGUSR1 within half a minute.
slurm_requeue() {
  slurm || return
  submit --nodes=2 --ntasks-per-node=1 --gpus-per-node=0 "$source_dir/examples/recipes/slurm/train.sbatch" "$program" "$job" --set run.name=$name --set step_scheduler.max_steps=1000000
  wanted 60 "the job trains" trains || return
  on node1 timeout 10 scontrol update JobId=$job_id TimeLimit=1
  wanted 50 "Slurm sends SIGUSR1, the ranks end" in_output "SIGUSR1" || return
  wanted 30 "the job is queued again" again || return
  local steps
  steps=$(completed_steps)
  [ -e "$folder/runs/$name/checkpoints/latest" ] && echo "ok: $name: $steps steps are saved" || fail job "nothing was saved"
  on node1 timeout 10 scontrol update JobId=$job_id TimeLimit=60
  wanted 180 "it goes on from step $steps" in_output "continues after step $steps:" || return
  expect_times job 0 "the job has no secret"
  # Told by scancel to end, it saves too, and is not queued again.
  wanted 30 "it makes further steps" further $steps || return
  on node1 timeout 10 scancel $job_id
  wanted 30 "scancel ends it" in_state $job_id CANCELLED
  wanted 10 "it was told by SIGTERM" in_output SIGTERM
  await 10 all_idle
  in_state $job_id CANCELLED || fail job "after scancel the job is $(state $job_id)"
  [ "$(cat "$folder/runs/$name/checkpoints/latest")" != "step_$(printf %08d $steps)" ] && echo "ok: $name: scancel lost no step" || fail job "nothing was saved after scancel"
}
again() { [ "$(of_job $job_id Restarts)" = 1 ]; }

# Two jobs at once, each with two ranks on a node, and a run of its own.
slurm_array() {
  slurm || return
  submit --array=0-1 --nodes=1 --ntasks=2 --open-mode=append --wrap "srun '$program' train '$job' --set run.name=$name\$SLURM_ARRAY_TASK_ID --set step_scheduler.max_steps=20"
  wanted 90 "both jobs are done" both_done || return
  code[job]=0; expect_times job 2 "ddp on 2 ranks"
  for task in 0 1; do [ $(grep -c '"loss"' "$folder/runs/$name$task/metrics.jsonl") = 20 ] || fail job "run $task has not made 20 steps"; done
}
both_done() { [ "$(grep -cF "done: 20 steps" "$folder/$name.job")" = 2 ] && all_idle; }

# The recipe for four nodes, as it is copied and submitted: no variable and no secret is set by hand.
slurm_recipe() {
  slurm 4 || return
  local place=$folder/recipe
  cp -r "$source_dir/examples/recipes/slurm" "$place"
  mkdir "$place/runs"
  seq 5000 > "$place/runs/text.txt"
  submit --chdir="$place" --ntasks-per-node=1 --gpus-per-node=0 "$place/train.sbatch" "$program" job.toml --set distributed.dp_replicate_size=2
  wanted 150 "the job is done" in_output "done: 10 steps" || return
  expect_times job 1 "fsdp2 on 4 ranks"; expect_times job 0 "the job has no secret"
  [ "$(sed -n 's/.*"loss": \([0-9.]*\),.*/\1/p' "$place/runs/four_nodes/metrics.jsonl" | tail -1 | cut -c1-4)" = 3.09 ] ||
    fail job "the loss is not that of expected.txt"
}

all="slurm_srun slurm_uneven slurm_with_a_secret slurm_by_a_file_of_hosts slurm_with_mpirun slurm_with_a_mistake slurm_array slurm_recipe"
# Most of its time slurm_requeue waits for Slurm's clock, so ctest has it as a test of its own, beside the others.
run_cases "$all" "$@"
