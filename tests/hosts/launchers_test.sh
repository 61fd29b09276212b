#!/bin/bash
# Launchers, started for real over two hosts (hosts.sh): torchrun, Open MPI, MPICH, and what Kubernetes' trainers set. Slurm has a test of its own.
#
#   tests/hosts/launchers_test.sh build/bin/meshwright torchrun|openmpi|mpich|kubernetes [CASE ...]
. "$(dirname "$0")/hosts.sh" "$1"; shift
launcher=$1; shift

# What mpirun starts its daemons on the other hosts with, in place of ssh: HOST COMMAND...
remote_shell() {
  { echo '#!/bin/bash'
    echo 'while [[ ${1-} == -* ]]; do shift; done'
    echo 'case $1 in'
    for host in hosta hostb; do echo "  $host) keeper=${keeper[$host]} ;;"; done
    echo '  *) echo "no host $1" >&2; exit 255 ;;'
    echo 'esac'
    echo 'shift; exec nsenter -t $keeper -n -m -u -- /bin/sh -c "$*"'
  } > "$folder/remote_shell"
  chmod +x "$folder/remote_shell"
}
train=("$program" train "$job")
# One rank leads, and two hosts took part: so many ranks, one end.
one_job() {  # LABEL RANKS [STEPS]
  expect $1 0 "ddp on $2 ranks"
  expect_times $1 1 "done: ${3:-2} steps"
}

# torchrun with two nodes, on the first of which its store is.
deps=${MESHWRIGHT_DEPS:-$source_dir/.deps}/python
torchrun() {  # HOST LABEL ARGUMENT...
  local host=$1 label=$2; shift 2
  launch $label $host OMP_NUM_THREADS=1 PYTHONPATH="$deps${PYTHONPATH:+:$PYTHONPATH}" python3 -m torch.distributed.run --no-python "$@"
}
torchrun_of_two_nodes() {
  two_named_hosts
  local node
  for node in 0 1; do
    torchrun $([ $node = 0 ] && echo hosta || echo hostb) torchrun$node --nnodes 2 --node-rank $node --nproc-per-node 2 --master-addr hosta --master-port 29555 \
      "${train[@]}" --set run.name=$name
  done
  finish; one_job torchrun0 4; expect torchrun1 0 ""
}
# Who comes first has rank 0; the store is at the endpoint, and its ranks are clients of the agent's.
torchrun_by_rendezvous() {
  two_named_hosts
  local host
  for host in hosta hostb; do
    torchrun $host $host --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint hosta:29400 --rdzv-id job "${train[@]}" --set run.name=$name
  done
  finish
  expect hosta 0 ""; expect hostb 0 ""
  cat "$folder/$name.hosta" "$folder/$name.hostb" > "$folder/$name.both"; code[both]=0
  one_job both 2; expect_times both 1 "asks nobody for a secret"
}
# Rank 0, on whichever host it is, keeps a store of its own at a port of the range; the agent's says where.
torchrun_with_a_secret() {
  two_named_hosts
  local -x MESHWRIGHT_JOB_SECRET=0123456789abcdef0 MESHWRIGHT_PORT_RANGE=29600-29609
  local host other open held=0
  for host in hosta hostb; do
    torchrun $host $host --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint hosta:29400 --rdzv-id job "${train[@]}" --set run.name=$name \
      --set step_scheduler.max_steps=200
  done
  await 100 trains || fail hosta "no step was made"
  # The look whether hosts reach each other is over: one port of the range is open, the store's (for ranks of its host at the loopback, too), and the
  # other host's rank is connected to it.
  open=$(for host in hosta hostb; do on $host ss -ltnH 'sport >= :29600 and sport <= :29609'; done | awk '$4 !~ /^127/ { print $4 }')
  if [[ $open =~ ^10\.70\.0\.([12]):[0-9]+$ ]]; then
    [ ${BASH_REMATCH[1]} = 1 ] && other=hostb || other=hosta
    held=$(on $other ss -tnH | awk -v store="$open" '$1 == "ESTAB" && $5 == store' | wc -l)
  fi
  finish
  expect hosta 0 ""; expect hostb 0 ""
  cat "$folder/$name.hosta" "$folder/$name.hostb" > "$folder/$name.both"; code[both]=0
  one_job both 2 200; expect_times both 0 "asks nobody for a secret"; expect_times both 0 "listens on every interface"
  if [ $held -gt 0 ]; then
    echo "ok: $name: the ranks are connected to $open alone"
  else
    fail "" "wanted one store at a port of the range, and the rank of the other host connected to it; open are: ${open:-none}"
  fi
}
# A mistake in the file: torchrun itself ends with 1, and its summary has the error of the rank.
torchrun_with_a_mistake() {
  two_named_hosts
  local node
  for node in 0 1; do
    torchrun $([ $node = 0 ] && echo hosta || echo hostb) torchrun$node --nnodes 2 --node-rank $node --nproc-per-node 1 --master-addr hosta --master-port 29555 \
      "${train[@]}" --set run.name=$name --set optimizer.lr=-1
  done
  finish
  for node in 0 1; do expect torchrun$node 1 "error[E0204]: optimizer.lr = -1"; expect torchrun$node 1 "exitcode  : 2"; done
}

openmpi() {  # ARGUMENT...: mpirun on hosta, over both hosts
  launch mpirun hosta mpirun.openmpi --allow-run-as-root --mca plm_rsh_agent "$folder/remote_shell" --mca plm rsh --mca oob_tcp_if_include net0 --bind-to none "$@"
}
openmpi_of_two_hosts() {
  two_named_hosts; remote_shell
  openmpi --host hosta:2,hostb:2 -np 4 -x MASTER_ADDR=hosta "${train[@]}" --set run.name=$name
  finish; one_job mpirun 4
}
# Nothing that Open MPI sets is the host of rank 0.
openmpi_without_an_address() {
  two_named_hosts; remote_shell
  openmpi --host hosta:1,hostb:1 -np 2 "${train[@]}" --set run.name=$name
  finish
  expect mpirun 4 "error[E0501]: MASTER_ADDR is not set, and the MPI job spans hosts"
  expect mpirun 4 "mpirun -x MASTER_ADDR=HOST"
}
# A secret reaches the ranks of both hosts by the environment alone.
openmpi_with_a_secret() {
  two_named_hosts; remote_shell
  local -x MESHWRIGHT_JOB_SECRET=0123456789abcdef0
  openmpi --host hosta:1,hostb:1 -np 2 -x MASTER_ADDR=hosta -x MESHWRIGHT_JOB_SECRET "${train[@]}" --set run.name=$name "${long[@]}"
  await 100 trains || fail mpirun "no step was made"
  on_no_command_line $MESHWRIGHT_JOB_SECRET hosta hostb
  tell_to_end hosta "$(command -v mpirun.openmpi)"
  finish
  saved mpirun SIGUSR1; expect_times mpirun 0 "the job has no secret"
}
openmpi_with_a_mistake() {
  two_named_hosts; remote_shell
  openmpi --host hosta:1,hostb:1 -np 2 -x MASTER_ADDR=hosta "${train[@]}" --set run.name=$name --set optimizer.lr=-1
  finish; expect mpirun 2 "error[E0204]: optimizer.lr = -1"
}

mpich() {  # ARGUMENT...: hydra's mpiexec on hosta, over both hosts
  launch mpiexec hosta mpiexec.hydra -launcher ssh -launcher-exec "$folder/remote_shell" -iface net0 -hosts hosta,hostb "$@"
}
mpich_of_two_hosts() {
  two_named_hosts; remote_shell
  mpich -ppn 2 -n 4 -genv MASTER_ADDR hosta -genv MASTER_PORT 29555 "${train[@]}" --set run.name=$name
  finish; one_job mpiexec 4
}
mpich_with_a_mistake() {
  two_named_hosts; remote_shell
  mpich -ppn 1 -n 2 -genv MASTER_ADDR hosta "${train[@]}" --set run.name=$name --set optimizer.lr=-1
  finish; expect mpiexec 2 "error[E0204]: optimizer.lr = -1"
}
# What is exported where mpiexec is started is handed on; -genv would show it.
mpich_with_a_secret() {
  two_named_hosts; remote_shell
  local -x MESHWRIGHT_JOB_SECRET=0123456789abcdef0
  mpich -ppn 1 -n 2 -genv MASTER_ADDR hosta "${train[@]}" --set run.name=$name "${long[@]}"
  await 100 trains || fail mpiexec "no step was made"
  on_no_command_line $MESHWRIGHT_JOB_SECRET hosta hostb
  tell_to_end hostb "$program"
  finish
  saved mpiexec "a signal to another rank"; expect_times mpiexec 0 "the job has no secret"
}
# mpiexec hands the signal on, but MPICH's ends with 0 then, whatever the ranks say.
mpich_mpiexec_is_told_to_end() {
  two_named_hosts; remote_shell
  mpich -ppn 1 -n 2 -genv MASTER_ADDR hosta "${train[@]}" --set run.name=$name "${long[@]}"
  tell_to_end hosta "$(command -v mpiexec.hydra)"
  finish
  [ ${code[mpiexec]} != 0 ] || code[mpiexec]=75
  saved mpiexec SIGUSR1
}

# Two pods: the variables that the manifest has for every pod, and what Kubernetes adds in each. Names are those of the headless service.
manifest=$source_dir/examples/kubernetes/job.yaml
pods() {  # VARIABLE=VALUE ...: of every pod; @ stands for its index
  make_switch
  local index
  for index in 0 1; do
    make_host meshwright-$index
    join meshwright-$index 10.70.0.$((index + 1))/24
    names meshwright-$index "10.70.0.2 meshwright-1.meshwright\n"
    [ -n "$apart" ] && [ $index = 1 ] || echo "10.70.0.1 meshwright-0.meshwright meshwright-node-0-0.meshwright" >> "$folder/hosts_meshwright-$index"
  done
  for index in 1 0; do
    launch $index meshwright-$index "${@//@/$index}" "${train[@]}" --set run.name=$name
    [ -z "$apart" ] || { sleep $apart; known; }
  done
  finish; one_job 0 2; expect 1 0 ""
}
# MANIFEST: what a pod gets of the Secret that the manifest names.
of_the_secret() { sed -n 's/^ *- name: \(MESHWRIGHT_JOB_SECRET\)$/\1=0123456789abcdef0/p' "$1"; }
apart=   # seconds from pod 1 to pod 0, whose name has no address before
known() { printf '10.70.0.1 meshwright-0.meshwright\n' >> "$folder/hosts_meshwright-1"; }
kubernetes_job() {
  local variables
  mapfile -t variables < <(awk '/^ *- name: PET_/ { name = $3 } /^ *value: / && name { gsub(/"/, "", $2); print name "=" $2 } !/- name: / { name = "" }' "$manifest")
  [ ${#variables[@]} = 4 ] || { fail "" "$manifest sets ${#variables[@]} PET_ variables by value, wanted 4"; return; }
  pods "${variables[@]}" $(of_the_secret "$manifest") PET_NODE_RANK=@ JOB_COMPLETION_INDEX=@
  expect_times 0 0 "the job has no secret"
}
# Pods start in any order: a name without an address is asked for again until the timeout.
kubernetes_name_comes_late() {
  local apart=4
  kubernetes_job
}
# Kubeflow Trainer's runtime for torch, one process in each node.
kubernetes_trainjob() {
  pods PET_NNODES=2 PET_NPROC_PER_NODE=1 PET_NODE_RANK=@ PET_MASTER_ADDR=meshwright-node-0-0.meshwright PET_MASTER_PORT=29500 JOB_COMPLETION_INDEX=@ \
    $(of_the_secret "$source_dir/examples/kubernetes/trainjob.yaml")
  expect_times 0 0 "the job has no secret"
}

case $launcher in
  torchrun)
    PYTHONPATH="$deps${PYTHONPATH:+:$PYTHONPATH}" python3 -c 'import torch.distributed.run' 2> /dev/null || skip "python3 finds no torch in $deps (./check puts it there)"
    all="torchrun_of_two_nodes torchrun_by_rendezvous torchrun_with_a_secret torchrun_with_a_mistake" ;;
  openmpi)
    need mpirun.openmpi
    all="openmpi_of_two_hosts openmpi_without_an_address openmpi_with_a_secret openmpi_with_a_mistake" ;;
  mpich)
    need mpiexec.hydra
    all="mpich_of_two_hosts mpich_with_a_secret mpich_with_a_mistake mpich_mpiexec_is_told_to_end" ;;
  kubernetes)
    all="kubernetes_job kubernetes_name_comes_late kubernetes_trainjob" ;;
  *) echo "unknown launcher $launcher"; exit 2 ;;
esac
run_cases "$all" "$@"
