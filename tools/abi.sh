#!/usr/bin/env bash
# Within a C++ epoch no symbol of the SDK goes or changes. sdk/abi holds those of the epoch that it names; layouts and virtual tables are held
# by sdk/abi.lock.
#   tools/abi.sh BUILD_DIR          compares the libraries there with the record; new symbols pass
#   tools/abi.sh BUILD_DIR renew    writes the record: after the epoch was bumped, and at a release, for what was added
#   tools/abi.sh BUILD_DIR freeze VERSION
#                                   promises the interface as it is: tests/abi/VERSION.tar.xz, headers and four plugins (tests/abi/abi.sh).
#                                   A candidate (1.0rc) may be made anew until its release.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$1
record=$root/sdk/abi
epoch=$(sed -n 's/^#define MESHWRIGHT_CXX_EPOCH //p' "$root/sdk/include/meshwright/abi.h")
now=$(mktemp -d)
trap 'rm -rf "$now"' EXIT

if [ "${2:-}" = freeze ]; then
  archive=$root/tests/abi/$3.tar.xz
  [[ $3 == *rc || ! -e "$archive" ]] || { echo "$archive is a promise that was given: freeze another version" >&2; exit 1; }
  frozen=$(mktemp -d)
  trap 'rm -rf "$frozen"' EXIT
  cp -r "$root/sdk/include" "$frozen/include"
  mkdir "$frozen/cmake"
  cp "$root"/sdk/cmake/{MeshwrightPlugin.cmake,abi_probe.cpp,plugin.map} "$frozen/cmake"
  cp "$root/tests/abi/plugins.cmake" "$frozen/CMakeLists.txt"
  for part in policy:sdk/kit/template model:examples/third_party_plugin family:examples/gpt2 data:examples/jsonl_gz; do
    mkdir "$frozen/${part%%:*}"
    (cd "$root/${part#*:}" && git ls-files | grep -v '^tests/\|CMakeLists\|README' | tar cf - -T - | tar xf - -C "$frozen/${part%%:*}")
  done
  tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$frozen" -cJf "$archive" .
  echo "$archive: $(du -h "$archive" | cut -f1), of epoch $epoch"
  exit 0
fi

# Ours alone: weak symbols are templates of other libraries or inlined here.
symbols() {
  abidw --no-corpus-path --no-elf-needed --no-architecture "$build/lib/libmeshwright_$1.so" |
    grep -v "binding='weak-binding'\|binding='gnu-unique-binding'" | sed "s/ alias='[^']*'//"
}
for library in sdk runtime engine c; do symbols $library >"$now/$library.abi"; done
if [ "${2:-}" = renew ]; then
  mkdir -p "$record" && cp "$now"/*.abi "$record" && echo "$epoch" >"$record/epoch"
  echo "recorded the symbols of epoch $epoch"
  exit 0
fi

[ "$(cat "$record/epoch")" = "$epoch" ] ||
  { echo "MESHWRIGHT_CXX_EPOCH is $epoch, sdk/abi is of $(cat "$record/epoch"): run tools/abi.sh build renew and commit sdk/abi" >&2; exit 1; }
for library in sdk runtime engine c; do
  abidiff --no-added-syms "$record/$library.abi" "$now/$library.abi" >"$now/changes" || {
    cat "$now/changes" >&2
    [ $library != c ] || { echo "libmeshwright_c.so lost symbols: none goes within its soname, whatever the epoch" >&2; exit 1; }
    echo "libmeshwright_$library.so lost symbols that plugins of epoch $epoch may use. Keep them: the interface is frozen (docs/plugins.md, Releases)." >&2
    exit 1
  }
done
echo "no symbol of epoch $epoch is gone"
