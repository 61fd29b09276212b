#!/usr/bin/env bash
# bundle.sh TREE: what of Debian's libraries the files of an installed tree need goes into its lib/meshwright/libs, with their licences, so
# that the archive runs on other releases too. What stays the system's is what a wheel may take for granted (PEP 600), LibTorch, and Arrow.
set -euo pipefail
tree=$1 libs=$1/lib/meshwright/libs licences=$1/share/doc/meshwright/licences
command -v patchelf >/dev/null || { echo "the archive needs patchelf: apt-get install patchelf" >&2; exit 1; }
mkdir -p "$libs" "$licences"
elf() { find "$tree" -type f -print0 | while IFS= read -r -d '' file; do [ "$(head -c 4 "$file" | tail -c 3 | tr -d '\0')" != ELF ] || echo "$file"; done; }
needed() { patchelf --print-needed "$1" | grep -vE '^(ld-linux|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|z|gomp|cudart|torch|torch_cpu|torch_cuda|c10|c10_cuda|nvrtc|arrow|parquet|meshwright_[a-z]+)\.so)' || true; }
# Some packages say /lib where the file lies in /usr/lib.
package_of() { local file; file=$(realpath "$1"); { dpkg -S "$file" "${file#/usr}" 2>/dev/null || true; } | sed -n '1s/:.*//p'; }
bundle() {  # with what the library itself needs
  local name path package
  for name in $(needed "$1"); do
    [ ! -e "$libs/$name" ] || continue
    path=$(ldconfig -p | sed -n "s#^\s$name (libc6,x86-64.*=> ##p" | head -1)
    [ -n "$path" ] || { echo "$1 needs $name, which is nowhere" >&2; exit 1; }
    package=$(package_of "$path")
    [ -n "$package" ] || { echo "$path is of no package of Debian, which has its licence" >&2; exit 1; }
    cp -L "$path" "$libs/$name"
    cp "/usr/share/doc/$package/copyright" "$licences/$(dpkg-query -Wf '${source:Package}\n' "$package" | head -1).txt"
    bundle "$libs/$name"
  done
}
for file in $(elf); do
  [ -n "$(needed "$file")" ] || continue
  bundle "$file"
  runpath=$(patchelf --print-rpath "$file")
  patchelf --set-rpath "${runpath:+$runpath:}\$ORIGIN/$(realpath --relative-to="$(dirname "$file")" "$libs")" "$file"
done
for file in "$libs"/*; do patchelf --set-rpath '$ORIGIN' "$file"; done
chmod 644 "$libs"/* "$licences"/*

# Older systems are told so by the program's entry: with the newest version that a symbol of the files is of.
glibc=$(for file in $(elf); do readelf -V "$file" 2>/dev/null; done | grep -o 'GLIBC_2\.[0-9]*' | sort -uV | tail -1)
mkdir "$tree/libexec"
mv "$tree/bin/meshwright" "$tree/libexec/meshwright"
sed "s/@GLIBC@/${glibc#GLIBC_}/g" "$(dirname "$0")/entry.sh" >"$tree/bin/meshwright"
chmod 755 "$tree/bin/meshwright"
