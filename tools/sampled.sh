#!/usr/bin/env bash
# What only a changed folder can break is left out, or to a sample, unless something that it is made of has changed since the commit that ./check
# compares with: a label, and where. ctest's labels are whole_..., and programs of such tests alone are not built, either (meshwright_whole() of
# cmake/TestCosts.cmake); asan_... and peers_... are parts of two stages of ./check. Run alone it prints the rows with all of their paths, one a
# line; the test `sampled` compares them with what ninja knows that the programs are made of.
#   <=FOLDER: the folders of cmake/Folders.cmake up to it, which are all that it may include; beyond the SDK, the plugins, too
everywhere="CMakeLists.txt CMakePresets.json cmake tools/setup.sh tests/reference_pytorch/requirements.lock tests/doctest_main.cpp sdk/CMakeLists.txt sdk/cmake"
running="sdk/include sdk/base sdk/comm sdk/nn sdk/parallel sdk/planning engine/checkpoint engine/config engine/job engine/launch engine/models
  engine/plugins engine/train plugins"
running=${running//$'\n'/}
of_peers="tests/reference_pytorch"
wholes="
whole_layouts $running tests/train_configs tests/parity tests/models tests/fixtures tests/data sdk/kit sdk/text engine/data apps/inference configs examples
whole_prove   $running tests/prove apps/prove apps/cli engine/include sdk/kit configs
whole_support $running tests/support tests/fixtures apps/prove apps/cli engine/include sdk/kit configs/chats configs/models docs/support.md
whole_faults  $running tests/faults tests/fixtures tests/data engine/data
whole_hosts   $running tests/hosts apps/cli apps/doctor apps/performance configs examples
whole_package $running tests/package tests/diloco tests/jsonl_gz tests/models engine/include sdk/kit apps/capi apps/cli configs docs/c_abi.md examples quickstart
whole_device  $running tests/fake_device tests/fixtures
whole_runtime <=sdk/parallel sdk/kit
whole_train   <=engine/train engine/include apps/performance tests/fixtures tests/data configs/models docs/semantics.md
whole_threads <=engine/train engine/include tests/sanitizers
whole_kernels <=apps/cli engine/include tests/fake_device tests/parity tests/contents.h
whole_cli     <=apps/cli engine/include tests/cli tests/fixtures tests/data tests/contents.h configs docs examples README.md
whole_abi     <=engine/train engine/include apps/cli tests/abi
whole_headers sdk/include engine/include tests/headers
whole_bench   <=engine/train engine/include apps/performance bench
whole_day     <=apps/cli engine/include bench tests/fake_device tools/device_day.sh
asan_sdk      <=sdk/planning tests/pipeline
asan_text     <=sdk/planning sdk/text tests/fuzz tests/data
asan_rows     <=sdk/planning sdk/text plugins/jsonl tests/fuzz tests/contents.h tests/data configs
asan_config   <=engine/plugins apps/migrate tests/fuzz tests/fixtures tests/data tests/migrate configs
asan_weights  <=sdk/planning engine/config engine/models engine/checkpoint tests/fuzz tests/data
peers_tokens  <=sdk/planning sdk/text apps/cli tests/tokenizer $of_peers
peers_running <=engine/train engine/include apps/cli apps/inference examples configs tests/data tests/pipeline $of_peers"

# paths_of ROW: its words with folders written out.
paths_of() {
  local word folder on above=
  printf '%s' "$everywhere"
  for word in "$@"; do
    case $word in
      "<="*)
        on=1 above=
        while read -r folder; do
          [ -n "$on" ] || continue
          printf ' %s' "$folder"
          case $folder in sdk/*) ;; *) above=1 ;; esac
          [ "$folder" != "${word#<=}" ] || on=
        done < <(sed -nE 's#^  ([a-z]+/[a-z]+)\)? .*#\1#p' cmake/Folders.cmake)
        [ -z "$on" ] || { echo "tools/sampled.sh: no folder ${word#<=} in cmake/Folders.cmake" >&2; return 1; }
        [ -z "$above" ] || printf ' plugins' ;;
      *) printf ' %s' "$word" ;;
    esac
  done
  echo
}
# sampled BASE: the labels of which nothing has changed since that commit. A file that was only moved has not changed.
sampled() {
  local label row paths changed
  while read -r label row; do
    [ -n "$label" ] || continue
    paths=$(paths_of $row) || return 1
    changed=$(git diff --name-only -M100% --diff-filter=r "$1" -- $paths && git ls-files -o --exclude-standard -- $paths) || return 1
    [ -n "$changed" ] || echo "$label"
  done <<<"$wholes"
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  set -euo pipefail
  cd "$(dirname "$0")/.."
  while read -r label row; do
    [ -z "$label" ] || echo "$label $(paths_of $row)"
  done <<<"$wholes"
fi
