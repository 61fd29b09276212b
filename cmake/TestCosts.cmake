# What a fresh clone has no record of: about how many seconds each long test takes on 2 cores (ctest starts the longest first), and which tests
# mostly wait, for a timeout or for a launcher. A test has two of the places that ctest fills, one that waits has one: with two places a core
# (ctest -j 4 on 2 cores) a core has something else to do meanwhile, and no more tests compute at once than there are cores.
set(MESHWRIGHT_TEST_COSTS
  engine_train 150 engine_train_layouts 200 engine_train_pipeline 90 engine_train_sharded 60 faults_whole 170 faults 70 faults_resume_whole 150 faults_resume 45 fake_device 180 train_configs_whole 150 train_configs 120 runtime 200 runtime_sockets 70
  package_template 230
  conformance_training 120 parity 105 cli 120 hosts_faults_whole 150 hosts_faults 30 hosts_slurm_requeue_whole 45 package_ring_zero 90 device_faults 80 package_diloco 75 package_models 100
  models 90 generate 85 package_cpack 100 hosts_whole 60 hosts 15 hosts_slurm_whole 50 hosts_slurm 15 hosts_torchrun_whole 40 hosts_torchrun 15 package_wheel 60 package_embed 45 recipes 45 keys 40 capi 40 package_jsonl_gz 30
  faults_hang 31 readme 25 engine_launch 25 engine_rendezvous 22 hosts_openmpi_whole 21 conformance 20 thread_sanitizer_async_save 20
  conformance_fsdp2 17 conformance_diloco 15 hosts_kubernetes_whole 15 plugin_jsonl 15 conformance_megatron_fsdp 14 conformance_moe_ep 13
  hosts_mpich_whole 12 frozen_submodules 11 site 14 package_c_abi 9 tokenizer 9 python 15)
set(MESHWRIGHT_WAITING_TESTS hosts_faults hosts_faults_whole hosts_slurm hosts_slurm_whole hosts_slurm_requeue_whole hosts_kubernetes
  hosts_kubernetes_whole faults_hang engine_launch)
function(meshwright_test_cost name)
  set(places 2)
  if(name IN_LIST MESHWRIGHT_WAITING_TESTS)
    set(places 1)
  endif()
  set_tests_properties(${name} PROPERTIES PROCESSORS ${places})
  list(FIND MESHWRIGHT_TEST_COSTS ${name} at)
  if(at GREATER_EQUAL 0)
    math(EXPR at "${at} + 1")
    list(GET MESHWRIGHT_TEST_COSTS ${at} seconds)
    set_tests_properties(${name} PROPERTIES COST ${seconds})
  endif()
endfunction()
