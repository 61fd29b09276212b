#!/usr/bin/env bash
# plugins new: what it writes builds, passes its own tests, plans and trains; and a plugin of other headers is refused.
. "$(dirname "$0")/common.sh"
export CCACHE_DIR=${CCACHE_DIR:-$HOME/.cache/ccache} HOME=$work/home  # a plugin is installed below it
unset XDG_DATA_HOME
"$meshwright" plugins new acme_shard >"$work/out"; expect "cd acme_shard" "$work/out"; expect "DCMAKE_PREFIX_PATH=$prefix" "$work/out"
cd acme_shard
# The version is the project's. The library alone: its own tests and the kit run below, from the build folder.
sed -i 's/VERSION 0.1.0/VERSION 2.3.4/' CMakeLists.txt
make "$work/acme_shard" Debug meshwright_acme_shard
"$meshwright" plan job.toml --world-size 8 >"$work/out"; expect "acme_shard on 8 ranks" "$work/out"
# Installed it is found without [plugins] load.
sed -i '/^load/d' job.toml
cmake --install build >"$work/out" 2>&1 || { cat "$work/out" >&2; fail "installing the plugin"; }
"$meshwright" plugins list --json >"$work/out"; expect '"version": "2.3.4"' "$work/out"; expect "$HOME/.local/share/meshwright/plugins" "$work/out"
"$meshwright" train job.toml --nproc 2 --set step_scheduler.max_steps=2 --set run.name=installed >"$work/out"; expect "done: 2 steps" "$work/out"
cd "$work"
# A kind of data set builds, passes its own tests and the kit, trains, and is told from others.
"$meshwright" plugins new acme_lines --kind data >"$work/out"; expect "train job.toml --nproc 2" "$work/out"
make "$work/acme_lines" Debug
own_tests "$work/acme_lines" '^train$'
cd "$work/acme_lines"
"$meshwright" train job.toml --nproc 2 --set step_scheduler.max_steps=2 >"$work/out"; expect "data: data/lines.txt" "$work/out"; expect "done: 2 steps" "$work/out"
refused E0713 "$meshwright" train job.toml --nproc 2 --set step_scheduler.max_steps=3 --set dataset.acme_lines.lower_case=false
cmake --install build >"$work/out" 2>&1 || { cat "$work/out" >&2; fail "installing the data set"; }
sed -i '/^load/d' job.toml
"$meshwright" plugins list >"$work/out"; expect "acme_lines" "$work/out"
"$meshwright" train job.toml --nproc 2 --set step_scheduler.max_steps=2 --set run.name=installed >"$work/out"; expect "done: 2 steps" "$work/out"
cd "$work"
# A model family builds, passes its own tests and the kit, plans and trains.
"$meshwright" plugins new acme_net --kind model >"$work/out"; expect "plan job.toml --world-size 8" "$work/out"
make "$work/acme_net" Debug
own_tests "$work/acme_net" '^(plan|train)$'
cd "$work/acme_net"
"$meshwright" plan job.toml --world-size 8 >"$work/out"; expect "AcmeNet" "$work/out"
"$meshwright" train job.toml --nproc 2 --set step_scheduler.max_steps=2 >"$work/out"; expect "done: 2 steps" "$work/out"
cd "$work"
refused E0101 "$meshwright" plugins new acme_other --kind datum
refused E0101 "$meshwright" plugins new acme_lines --kind data --dir elsewhere
refused E0101 "$meshwright" plugins new acme_shard
refused E0101 "$meshwright" plugins new Bad-Name --dir bad

# The build folder is a package as well: what its `plugins new` says can be typed as it stands, spaces in the path or not.
"$build/bin/meshwright" plugins new from_build --dir "$work/from build" >"$work/out"
sed -n 's/^  //p' "$work/out" >"$work/next.sh"
[ "$(wc -l <"$work/next.sh")" = 6 ] || fail "plugins new no longer says six next steps"
# A Release all the same, which takes less long to build.
echo 'set(CMAKE_CXX_FLAGS_RELEASE "-O1 -DNDEBUG" CACHE STRING "")' >quick.cmake
CMAKE_TOOLCHAIN_FILE=$work/quick.cmake bash -e "$work/next.sh" >"$work/out" 2>&1 || { cat "$work/out" >&2; fail "the next steps of plugins new in a build folder"; }
expect "from_build on 8 ranks" "$work/out"; expect "100% tests passed" "$work/out"; expect "done: 20 steps" "$work/out"

# A package whose headers are of another epoch makes plugins that this engine refuses, without running them.
cp -r "$prefix" "$work/other"
sed -i 's/#define MESHWRIGHT_CXX_EPOCH .*/#define MESHWRIGHT_CXX_EPOCH 999/' "$work/other/include/meshwright/abi.h"
"$meshwright" plugins new acme_other --kind data >"$work/out"
prefix=$work/other; make "$work/acme_other" Debug meshwright_acme_other
refused E0405 "$meshwright" plugins inspect "$work/acme_other/build/libmeshwright_acme_other.so"; expect "sdk.cxx_epoch" "$work/out"
echo "a new plugin plans and trains"
