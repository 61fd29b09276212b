#!/usr/bin/env bash
# Plugins of a frozen interface with the libraries of today: abi.sh BUILD_DIR SOURCE_DIR GENERATOR VERSION
#
# tests/abi/VERSION.tar.xz holds the public headers as they were at the freeze and six plugins: a policy, a ParallelModel of its own and one around
# another's, two model families, a kind of data set. Today's headers lay out what those did, in their order, and the plugins, built against them, are
# judged, plan, train, save and go on with today's libraries. What an archive holds was promised and is never renewed.
set -euo pipefail
build=$1 source=$2 generator=$3 version=$4
work=$build/abi_test/$version
meshwright=$build/bin/meshwright
unset WORLD_SIZE RANK LOCAL_RANK MASTER_ADDR MASTER_PORT
export OMP_NUM_THREADS=1 NO_COLOR=1
fail() { echo "FAILED: $*" >&2; exit 1; }
quietly() { "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "$*"; }; }

# Unpacked again, and built anew, where the archive is another one; a second run has nothing to compile.
mkdir -p "$work"
if ! cmp -s "$source/tests/abi/$version.tar.xz" "$work/archive"; then
  rm -rf "$work/source" "$work/build" && mkdir "$work/source"  # what is unpacked is older than what was built
  tar xf "$source/tests/abi/$version.tar.xz" -C "$work/source"
  cp "$source/tests/abi/$version.tar.xz" "$work/archive"
fi
frozen=$(sed -n 's/^#define MESHWRIGHT_CXX_EPOCH //p' "$work/source/include/meshwright/abi.h")
now=$(sed -n 's/^#define MESHWRIGHT_CXX_EPOCH //p' "$source/sdk/include/meshwright/abi.h")
[ "$frozen" = "$now" ] || fail "MESHWRIGHT_CXX_EPOCH is $now, but version $version of the interface was promised with $frozen: keep the layouts and virtual
tables as they are, and give what is new a function of the library, the \`later\` of a struct, or an extension() (docs/plugins.md, Releases)"
python3 "$source/tests/abi/layouts.py" "$work/source/include" "$source/sdk/include" || fail "the public headers do not lay out what version $version of
the interface promised: undo that, and give what is new a function of the library, the \`later\` of a struct, or an extension()"
if command -v ccache >/dev/null; then export CMAKE_CXX_COMPILER_LAUNCHER=ccache; fi
quietly cmake -S "$work/source" -B "$work/build" -G "$generator" -DCMAKE_PREFIX_PATH="$build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG"
quietly cmake --build "$work/build" --parallel 2

cd "$work"
rm -rf runs
losses() { sed -n 's/.*"loss": \([0-9.e+-]*\), "grad_norm": \([0-9.e+-]*\),.*/\1 \2/p' "runs/$1/metrics.jsonl"; }
# tried NAME FOLDER ARGUMENT...: its plan, and four steps in one run and in two, the second of which goes on from the checkpoint of the first.
tried() {
  local name=$1 job="$work/source/$2/job.toml"; shift 2
  local settings=(--set "plugins.load=[\"$work/build/libmeshwright_$name.so\"]" "$@")
  [ ! -e "$(dirname "$job")/model.json" ] || settings+=(--set "model.config=$(dirname "$job")/model.json")
  quietly "$meshwright" plan "$job" "${settings[@]}" --world-size 4
  train() { quietly "$meshwright" train "$job" "${settings[@]}" --nproc 2 --set run.name="$1" --set step_scheduler.max_steps="$2"; }
  train "$name" 4
  train "${name}_twice" 2
  train "${name}_twice" 4
  [ "$(losses "$name" | wc -l)" = 4 ] || fail "$name has no four losses"
  [ "$(losses "$name")" = "$(losses "${name}_twice")" ] || { losses "$name" >&2; losses "${name}_twice" >&2; fail "$name went on from its checkpoint with other losses"; }
}
tried my_strategy policy
tried ring_zero model
tried gpt2 family
tried diloco around --set distributed.diloco.sync_every=2  # a run's end brings replicas together, too
tried encoder encoder
tried jsonl_gz data --set "dataset.path=$work/source/data/data/lines.jsonl.gz"
for plugin in my_strategy ring_zero diloco; do quietly "$meshwright" plugins check "$work/build/libmeshwright_$plugin.so"; done
echo "six plugins of the interface $version plan, train, save and go on with the libraries of today"
