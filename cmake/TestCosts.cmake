# What a fresh clone has no record of: about how many seconds each long test takes on 2 cores (ctest starts the longest first), and which tests
# mostly wait, for a timeout or for a launcher. A test has two of the places that ctest fills, one that waits has one: with two places a core
# (ctest -j 4 on 2 cores) a core has something else to do meanwhile, and no more tests compute at once than there are cores.
set(MESHWRIGHT_TEST_COSTS
  fake_device 492 engine_train 356 package_template 353 engine_train_layouts 311 runtime 284 conformance_training 254 hosts_faults_whole 201
  package_models 183 engine_train_pipeline 162 cli 160 faults_whole 159 faults_resume_whole 159 package_ring_zero 131 hosts_whole 104
  train_configs 98 package_diloco 98 package_cpack 98 generate 73 train_configs_whole 69 hosts_slurm_whole 67 faults 66 parity 63 device_faults 58
  abi_1_0 53 hosts_torchrun_whole 51 runtime_sockets 49 engine_train_sharded 48 package_embed 48 models 46 hosts_faults 43
  hosts_slurm_requeue_whole 42 faults_resume 40 keys 40 recipes 39 capi 38 engine_rendezvous 37 package_wheel 33 readme 33 faults_hang 28
  engine_launch 24 prove_whole 24 hosts 23 conformance_diloco 22 package_jsonl_gz 21 conformance 21 hosts_openmpi_whole 19 site 19 hosts_torchrun 18
  conformance_fsdp2 18 engine_prove_running 16 prove 16 support 25 conformance_moe_ep 16 hosts_mpich_whole 14 python 14 report_page 14 hosts_kubernetes_whole 13 conformance_megatron_fsdp 13
  fake_device_attention_cudnn 13 thread_sanitizer_async_save 10 frozen_submodules 9 package_c_abi 8 tokenizer 7 hosts_slurm 6 plugin_jsonl 2)
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

# meshwright_whole(WHAT [TESTS name...] [PROGRAMS target...]): what only a changed folder can break. The tests are of the label whole_WHAT, which
# ./check leaves out where nothing that they are made of has changed (tools/sampled.sh). Then it says so in MESHWRIGHT_LEFT_OUT, too, and programs
# and libraries that no other test has are built for who asks for them alone.
set(MESHWRIGHT_LEFT_OUT "" CACHE STRING "Labels of tests whose programs are not built by default")
function(meshwright_whole what)
  cmake_parse_arguments(arg "" "" "TESTS;PROGRAMS" ${ARGN})
  # At the end of the folder, so that labels of its own, whenever they are set, do not take this one's place.
  foreach(test ${arg_TESTS})
    cmake_language(EVAL CODE "cmake_language(DEFER CALL set_property TEST [[${test}]] APPEND PROPERTY LABELS [[whole_${what}]])")
  endforeach()
  foreach(program ${arg_PROGRAMS})
    if(TARGET ${program} AND whole_${what} IN_LIST MESHWRIGHT_LEFT_OUT)
      set_target_properties(${program} PROPERTIES EXCLUDE_FROM_ALL ON)
    endif()
  endforeach()
endfunction()
