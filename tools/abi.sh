#!/usr/bin/env bash
# No symbol that a public header declares goes. sdk/abi lists those of the epoch that it names; layouts and virtual tables are held by tests/abi.
#   tools/abi.sh BUILD_DIR          compares the libraries there with the record; new symbols pass
#   tools/abi.sh BUILD_DIR renew    writes the record: after the epoch was bumped, and at a release, for what was added
#   tools/abi.sh BUILD_DIR freeze VERSION
#                                   promises the interface as it is: tests/abi/VERSION.tar.xz, headers and six plugins (tests/abi/abi.sh).
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
  for part in policy:sdk/kit/template model:examples/third_party_plugin family:examples/gpt2 data:examples/jsonl_gz around:examples/diloco \
    encoder:examples/encoder; do
    mkdir "$frozen/${part%%:*}"
    (cd "$root/${part#*:}" && git ls-files | grep -v '^tests/\|CMakeLists\|README' | tar cf - -T - | tar xf - -C "$frozen/${part%%:*}")
  done
  tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$frozen" -cJf "$archive" .
  echo "$archive: $(du -h "$archive" | cut -f1), of epoch $epoch"
  exit 0
fi

# What the public headers declare, of what a library exports: names that stand in them, of classes whose inside they show. What else there is
# (other folders' own functions, templates of other libraries) may go.
cat "$root"/sdk/include/meshwright/{,*/}*.h | grep -v '^ *//' | grep -oE '[A-Za-z_]\w*' | sort -u >"$now/words"
symbols() {
  nm -D --defined-only -f posix "$build/lib/libmeshwright_$1.so" | awk '$2 ~ /[TDBR]/ { print $1 }' | c++filt |
    if [ "$1" = c ]; then cat; else awk -v words="$now/words" '
      BEGIN { while ((getline word < words) > 0) known[word] = 1 }
      {
        name = $0
        sub(/^(vtable|typeinfo|typeinfo name|VTT) for |^(non-virtual|virtual) thunk to /, "", name)
        if (name ~ /::(Parts|Impl)[^A-Za-z_]/) next  # of classes whose inside nobody else makes
        sub(/operator.*/, "operator", name); sub(/\(.*/, "", name); sub(/\[abi:.*/, "", name)
        if (name !~ /^meshwright::/ || name ~ /[<{ ]/) next
        parts = split(name, part, "::")
        for (i = 2; i <= parts; ++i) {
          gsub(/^~/, "", part[i])
          if (!(part[i] in known) || part[i] ~ /^(Impl|Parts|Tables|Values|Shared|Table|Object|GroupAccess|UnitLayout|Flight)$/) next
        }
        print
      }'; fi | LC_ALL=C sort -u
}
for library in sdk runtime c; do symbols $library >"$now/$library"; done
if [ "${2:-}" = renew ]; then
  mkdir -p "$record" && cp "$now"/{sdk,runtime,c} "$record" && echo "$epoch" >"$record/epoch"
  wc -l "$record"/{sdk,runtime,c}
  exit 0
fi

[ "$(cat "$record/epoch")" = "$epoch" ] ||
  { echo "MESHWRIGHT_CXX_EPOCH is $epoch, sdk/abi is of $(cat "$record/epoch"): the interface is frozen (docs/plugins.md, Releases)" >&2; exit 1; }
for library in sdk runtime c; do
  gone=$(LC_ALL=C comm -23 "$record/$library" "$now/$library")
  [ -z "$gone" ] || {
    echo "libmeshwright_$library.so lost symbols that programs and plugins may use:" "$gone" "Keep them (docs/plugins.md, Releases)." >&2
    exit 1
  }
done
echo "no symbol of epoch $epoch is gone"
