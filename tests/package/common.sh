# Sourced by the tests of the installed package: PART.sh BUILD_DIR SOURCE_DIR GENERATOR
set -euo pipefail
build=$1 source=$2 generator=$3
package=$build/package_test
prefix=$package/prefix
meshwright=$prefix/bin/meshwright
share=$prefix/share/meshwright
work=$package/$(basename "$0" .sh)
unset WORLD_SIZE RANK LOCAL_RANK MASTER_ADDR MASTER_PORT
export OMP_NUM_THREADS=1 NO_COLOR=1

fail() { echo "FAILED: $*" >&2; exit 1; }
expect() { grep -qF -- "$1" "$2" || { cat "$2" >&2; fail "expected \"$1\""; }; }  # expect TEXT FILE
refused() {  # refused TEXT COMMAND...: the command fails and says so
  local text=$1; shift
  "$@" >"$work/out" 2>&1 && fail "accepted: $*"
  expect "$text" "$work/out"
}
if command -v ccache >/dev/null; then export CMAKE_CXX_COMPILER_LAUNCHER=ccache; fi
# make SOURCE BUILD_TYPE [TARGET...]: configures and builds in SOURCE/build against the package. Debug: without symbols, which cost most;
# Release: a little optimized, which is a Release all the same.
make() {
  local folder=$1 type=$2; shift 2
  cmake -S "$folder" -B "$folder/build" -G "$generator" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE="$type" -DCMAKE_CXX_FLAGS_DEBUG= -DCMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG" >"$work/log" 2>&1 &&
    cmake --build "$folder/build" ${1:+--target "$@"} >>"$work/log" 2>&1 || { cat "$work/log" >&2; fail "building $folder"; }
}
# own_tests FOLDER [EXPRESSION]: all but those, which this build runs of the same sources.
own_tests() { (cd "$1/build" && ctest --output-on-failure ${2:+-E "$2"} >"$work/out" 2>&1) || { cat "$work/out" >&2; fail "the tests of $1"; }; }

# trained NAME ARGUMENT...: trains three steps and keeps their losses and gradient norms in NAME.losses.
trained() {
  local name=$1; shift
  (cd "$work" && "$meshwright" train "$@" --set run.name="$name" --set step_scheduler.max_steps=3 >"$work/out" 2>&1) || { cat "$work/out" >&2; fail "training $name"; }
  sed -n 's/.*"loss": \([0-9.e+-]*\), "grad_norm": \([0-9.e+-]*\),.*/\1 \2/p' "$work/runs/$name/metrics.jsonl" >"$work/$name.losses"
  [ "$(wc -l <"$work/$name.losses")" = 3 ] || fail "$name has no three losses"
}
# same NAME NAME: every number is equal within 1e-5.
same() {
  paste "$work/$1.losses" "$work/$2.losses" | awk '{ for (i = 1; i <= NF / 2; ++i) { d = $i / $(i + NF / 2) - 1; if (d > 1e-5 || d < -1e-5) exit 1 } }' ||
    { paste "$work/$1.losses" "$work/$2.losses" >&2; fail "$1 and $2 have other losses or gradient norms"; }
}
# printed RECIPE: what its run.sh prints, in the current folder, is what its expected.txt says.
printed() {
  "$1/run.sh" >"$work/out" 2>&1 || { cat "$work/out" >&2; fail "the recipe $1"; }
  python3 "$source/tests/package/as_expected.py" "$1/expected.txt" "$work/out" || fail "the recipe $1"
}
rm -rf "$work"; mkdir -p "$work"
cd "$work"
