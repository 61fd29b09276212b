#!/usr/bin/env bash
# cpack: the archive has the libraries that it needs and runs where it is unpacked, with LibTorch's folder beside; a new plugin is built against it;
# Debian's packages pass lintian.
. "$(dirname "$0")/common.sh"
torch=$(sed -n 's/^MESHWRIGHT_TORCH_DIR:PATH=//p' "$build/CMakeCache.txt")
unset MESHWRIGHT_DEPS
(cd "$build" && cpack -B "$work/packed") >"$work/log" 2>&1 || { tail -20 "$work/log" >&2; fail cpack; }

mkdir unpacked && tar -xzf packed/meshwright-*.tar.gz -C unpacked --strip-components=1
prefix=$work/unpacked meshwright=$work/unpacked/bin/meshwright share=$work/unpacked/share/meshwright
find unpacked -type f \( -name '*.so*' -o -path '*/libexec/*' \) -exec readelf -d {} + | sed -n 's/.*RUNPATH.*\[\(.*\)\]/\1/p' | tr ':' '\n' >runpaths
expect '$ORIGIN/meshwright/torch/lib' runpaths
if grep -v '^\$ORIGIN' runpaths; then fail "libraries are looked for in a folder of the machine that built this"; fi
ldd unpacked/libexec/meshwright >libs_of_program
if grep -E '/(boost|lib(boost|edit|bsd|md\.|tinfo|pcre2|utf8proc|yaml|prometheus|civetweb))' libs_of_program | grep -v "$work/unpacked/"; then fail "a library of the system is taken"; fi
[ -s unpacked/share/doc/meshwright/licences/boost1.81.txt ] || fail "the licence of Boost is missing"
# A system that it cannot run on is told so in words, not by the loader.
mkdir fake
printf '#!/bin/sh\necho "glibc 2.31"\n' >fake/getconf; printf '#!/bin/sh\necho aarch64\n' >fake/uname; chmod +x fake/*
refused "error: this build is for x86_64 processors, and this machine is aarch64" env PATH="$work/fake:$PATH" "$meshwright" --version
rm fake/uname
refused "error: this build needs glibc 2.34 or newer, and this system has glibc 2.31: use " env PATH="$work/fake:$PATH" "$meshwright" --version
ln -s "$meshwright" linked && [[ $(./linked --version) == meshwright\ * ]] || fail "it runs by a link"
if grep -rF "$torch" unpacked/lib/cmake; then fail "the CMake files remember where LibTorch lay"; fi

job="$share/configs/ddp_cpu.toml --set model.config=$source/configs/models/llama-tiny.json --set step_scheduler.global_batch_size=8 --set dataset.seq_len=32"
refused "LibTorch 2.11 is not found" "$meshwright" train $job; expect "ln -s <the torch folder of the LibTorch wheel> $work/unpacked/lib/meshwright/torch" "$work/out"
awk '/^```c$/ { on = 1; next } /^```$/ { on = 0 } on' "$source/docs/c_abi.md" >train.c
${CC:-cc} -std=c99 train.c -I unpacked/include -L unpacked/lib -lmeshwright_c -Wl,-rpath,"$work/unpacked/lib" -o train
sed "s#configs/models#$source/configs/models#" "$share/configs/ddp_cpu.toml" >job.toml
refused "error[E0209]: LibTorch 2.11 is not found" ./train job.toml; expect "learning rate 0.001" "$work/out"
"$meshwright" plan $job --world-size 2 >"$work/out"; expect "ddp on 2 ranks" "$work/out"  # planning does without
ln -s "$torch" unpacked/lib/meshwright/torch
trained packed $job --nproc 2
"$meshwright" plugins new acme_packed >/dev/null
make "$work/acme_packed" Debug meshwright_acme_packed
HOME=$work/home "$meshwright" plugins inspect acme_packed/build/libmeshwright_acme_packed.so >"$work/out"; expect "acme_packed" "$work/out"

for package in packed/*.deb; do
  [ "$(dpkg-deb -f "$package" Maintainer)" = "Meshwright contributors <noreply@meshwright.invalid>" ] || fail "$package: the maintainer"
  dpkg-deb --fsys-tarfile "$package" | tar -xO --wildcards './usr/share/doc/*/copyright' >"$work/out"; expect "Copyright: 2025-2026 Meshwright contributors" "$work/out"
done

if command -v lintian >/dev/null; then
  lintian --allow-root --fail-on error,warning packed/*.deb >"$work/out" 2>&1 || { cat "$work/out" >&2; fail "lintian"; }
else
  echo "(lintian is not installed)"
fi
rm -rf packed unpacked
echo "the packages are whole and run with LibTorch beside"
