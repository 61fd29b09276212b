#!/usr/bin/env bash
# The installed package as a stranger uses it: install, move, build the example and a new plugin out of tree, plan, check.
# run.sh BUILD_DIR SOURCE_DIR GENERATOR
set -euo pipefail
build=$1 source=$2 generator=$3
work=$build/package_test
rm -rf "$work" && mkdir -p "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
expect() { grep -qF -- "$1" "$2" || { cat "$2" >&2; fail "expected \"$1\""; }; }

cmake --install "$build" --prefix "$work/first" >/dev/null
mv "$work/first" "$work/prefix"  # nothing may remember where it was installed
prefix=$work/prefix
meshwright=$prefix/bin/meshwright
cd /  # and nothing may depend on the current folder

"$meshwright" --version >"$work/out"; expect "meshwright 0." "$work/out"
"$meshwright" plugins list >"$work/out"; expect "megatron_fsdp" "$work/out"; expect "installation" "$work/out"
"$meshwright" plan "$prefix/share/meshwright/configs/hsdp_tp.toml" --world-size 8 --set model.config="$prefix/share/meshwright/configs/models/llama-tiny.json" --set distributed.tp_size=1 >"$work/out"
expect "LlamaForCausalLM" "$work/out"

make() { cmake -S "$1" -B "$2" -G "$generator" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE="$3" >"$work/cmake.log" 2>&1 && cmake --build "$2" >"$work/build.log" 2>&1 || { cat "$work"/*.log >&2; fail "building $1"; }; }

cp -r "$source/examples/third_party_plugin" "$work/ring_zero"
make "$work/ring_zero" "$work/ring_zero/build" Release
"$meshwright" plan "$work/ring_zero/job.toml" --world-size 16 --json >"$work/out" 2>"$work/err"
expect '"strategy": "ring_zero"' "$work/out"; expect "2 copies of 4 shards" "$work/err"
"$meshwright" plan "$work/ring_zero/job.toml" --world-size 16 --set distributed.ring_zero.shard_group_size=0 >"$work/out" 2>&1 && fail "a group of 0 was accepted"
expect "E0204" "$work/out"
"$meshwright" plan "$work/ring_zero/job.toml" --world-size 16 --set distributed.tp_plan=ring_zero_mlp_only \
  --set model.config="$prefix/share/meshwright/configs/models/llama-tiny.json" --json >"$work/out" 2>/dev/null
expect "model.layers.*.mlp.up_proj" "$work/out"
grep -q "q_proj\",[[:space:]]*\"style" "$work/out" && fail "the named plan was not used"
"$meshwright" plugins check "$work/ring_zero/build/libmeshwright_ring_zero.so" >"$work/out" || { cat "$work/out" >&2; fail "the kit refuses the example"; }
expect "0 failed" "$work/out"

"$meshwright" plugins new acme_shard --dir "$work/acme_shard" >"$work/out"
make "$work/acme_shard" "$work/acme_shard/build" Debug
"$meshwright" plan "$work/acme_shard/job.toml" --world-size 8 >"$work/out"; expect "acme_shard on 8 ranks" "$work/out"
(cd "$work/acme_shard/build" && ctest --output-on-failure >"$work/out" 2>&1) || { cat "$work/out" >&2; fail "the template's own tests"; }
"$meshwright" plugins new acme_shard --dir "$work/acme_shard" >"$work/out" 2>&1 && fail "an existing folder was overwritten"
"$meshwright" plugins new Bad-Name --dir "$work/bad" >"$work/out" 2>&1 && fail "a bad name was accepted"
expect "E0101" "$work/out"

# The build folder is a package as well: what its `plugins new` says can be typed as it stands, spaces in the path or not.
"$build/bin/meshwright" plugins new from_build --dir "$work/from build" >"$work/out"
sed -n 's/^  //p' "$work/out" >"$work/next.sh"
[ "$(wc -l <"$work/next.sh")" = 4 ] || fail "plugins new no longer says four next steps"
bash -e "$work/next.sh" >"$work/out" 2>&1 || { cat "$work/out" >&2; fail "the next steps of plugins new in a build folder"; }
expect "from_build on 8 ranks" "$work/out"; expect "0 failed" "$work/out"

# A package whose headers are of another epoch makes plugins that this engine refuses, without running them.
cp -r "$prefix" "$work/other"
sed -i 's/#define MESHWRIGHT_CXX_EPOCH .*/#define MESHWRIGHT_CXX_EPOCH 999/' "$work/other/include/meshwright/abi.h"
prefix=$work/other; make "$work/ring_zero" "$work/ring_zero/build_other" Release
"$meshwright" plugins inspect "$work/ring_zero/build_other/libmeshwright_ring_zero.so" >"$work/out" 2>&1 && fail "another epoch was accepted"
expect "E0405" "$work/out"; expect "sdk.cxx_epoch" "$work/out"
rm -rf "$work"
echo "the installed package works"
