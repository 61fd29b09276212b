#!/usr/bin/env bash
# wheel: what tools/wheel.sh makes, installed by pip into a fresh virtual environment beside torch: trains, has a plugin built against it, and says what
# is missing where torch or the machine is another one.
. "$(dirname "$0")/common.sh"
torch=$(sed -n 's/^MESHWRIGHT_TORCH_DIR:PATH=//p' "$build/CMakeCache.txt")
deps=${MESHWRIGHT_DEPS:-$source/.deps}
unset MESHWRIGHT_DEPS PYTHONPATH
MESHWRIGHT_DEPS=$deps bash "$source/tools/wheel.sh" "$build" "$work/dist" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "tools/wheel.sh"; }
wheel=$(echo "$work"/dist/*.whl)
[[ $wheel =~ /meshwright-0\.[0-9]+\.[0-9]+-py3-none-(manylinux_2_[0-9]+)_x86_64\.whl$ ]] || fail "the name of $wheel"
platform=${BASH_REMATCH[1]}
[ "$(stat -c %s "$wheel")" -lt 15000000 ] || fail "$(stat -c %s "$wheel") bytes are more than 15 MB"

# auditwheel's report: nothing but LibTorch's own libraries is asked of the machine beyond what the tag allows.
PYTHONPATH=$deps/python python3 -m auditwheel show --json "$wheel" >report.json 2>"$work/log" || { cat "$work/log" >&2; fail "auditwheel show"; }
python3 - report.json "${platform}_x86_64" <<'END' || fail "auditwheel's report"
import json, re, sys
report, platform = json.load(open(sys.argv[1])), sys.argv[2]
assert report["sym_tag"] == platform, f"symbols need {report['sym_tag']}, the tag says {platform}"
assert platform == "manylinux_2_34_x86_64", f"{platform}: RHEL 9 has glibc 2.34 and the libstdc++ of GCC 11"
of_torch = r"lib(arrow|parquet)\.so\.\d+|libtorch_(cpu|cuda)\.so|libc10(_cuda)?\.so|libgomp\.so\.1|libcudart\.so\.13"
others = [name for name in report["external_libs"] if not re.fullmatch(of_torch, name)]
assert not others and "libtorch_cpu.so" in report["external_libs"], f"libraries of others: {others}"
END

python3 -m venv --without-pip env
site=$(echo "$work"/env/lib/python3*/site-packages)
pip() { PIP_CONFIG_FILE=/dev/null python3 -m pip --disable-pip-version-check --python "$work/env" "$@"; }
refused "No matching distribution found for torch==2.11.*" pip install --no-index "$wheel"
pip install --no-index --no-deps "$wheel" >"$work/out" 2>&1 || { cat "$work/out" >&2; fail "pip install"; }
built=$prefix prefix=$site/meshwright/_native share=$site/meshwright/_native/share/meshwright meshwright=$work/env/bin/meshwright

# One list: beside names that only links have, it is what `cmake --install` gives.
(cd "$built" && find . -path ./share/meshwright/python -prune -o -type f ! -name '*.so.[0-9]*' -print -o -name '*.so' -print -o -name '*.so.[0-9]' -print |
  sort) >installed
{ (cd "$prefix" && find . -type f ! -path '*/__pycache__/*') && cd "$work/env" && find ./share -type f; } | sort >in_wheel
diff installed in_wheel || fail "the wheel holds other files than the installation"
[ -z "$(find "$prefix" -name '*.so*' -type f -exec readelf -d {} + 2>/dev/null | grep -E 'R(UN)?PATH' | grep -F "$source")" ] || fail "the libraries remember this machine"
if readelf -SW "$prefix/bin/meshwright" "$prefix"/lib/*.so.1 | grep -F .symtab; then fail "not stripped"; fi
if grep -rF "$torch" "$prefix/lib/cmake"; then fail "the CMake files remember where LibTorch lay"; fi

# Each library of others has its licence, and what pip shows has no link that leads nowhere.
python3 - "$site" <<'END' || fail "what the wheel says of itself"
import pathlib, re, sys
site = pathlib.Path(sys.argv[1])
[info] = site.glob("meshwright-*.dist-info")
metadata = (info / "METADATA").read_text()
named = re.findall("^License-File: (.+)$", metadata, re.M)
assert sorted(named) == sorted(file.name for file in (info / "licenses").iterdir()), f"METADATA names {named}"
projects = ["lib" + re.sub(r"^lib|[0-9.]*\.txt$", "", name) for name in named]  # boost1.81.txt: libboost
projects += ["libtinfo"] if "ncurses.txt" in named else []
libraries = [file.name for file in (site / "meshwright.libs").iterdir()]
unlicensed = [name for name in libraries if not name.startswith(tuple(projects))]
assert libraries and not unlicensed, f"without a licence: {unlicensed}"
assert "meshwright quickstart" in metadata and "](" not in metadata
END

job="$share/configs/ddp_cpu.toml --set model.config=$share/configs/models/llama-tiny.json --set step_scheduler.global_batch_size=8 --set dataset.seq_len=32"
"$meshwright" plan $job --world-size 2 >"$work/out"; expect "ddp on 2 ranks" "$work/out"  # planning does without
refused "LibTorch 2.11 is not found" "$meshwright" train $job; expect "help: python -m pip install 'torch==2.11.*'" "$work/out"
mkdir -p "$site/torch/lib" && touch "$site/torch/lib/libtorch_cpu.so" && echo "__version__ = '2.10.1+cpu'" >"$site/torch/version.py"
refused "LibTorch 2.10.1+cpu lies in $site/torch, but 2.11 is wanted" "$meshwright" train $job; expect "help: python -m pip install 'torch==2.11.*'" "$work/out"
rm -r "$site/torch"
# Another site-packages, as of a system that the environment sees.
dirname "$torch" >"$site/elsewhere.pth"
trained elsewhere $job
# CMake is told where that is.
"$meshwright" plugins new mine >"$work/out"; expect "DCMAKE_PREFIX_PATH=$prefix" "$work/out"
configure=(cmake -S mine -B configured -G "$generator" -DCMAKE_PREFIX_PATH="$prefix")
refused "  -DMESHWRIGHT_TORCH_DIR=\"\$(python3 -c 'import torch,os;print(os.path.dirname(torch.__file__))')\"" "${configure[@]}"
"${configure[@]}" -DMESHWRIGHT_TORCH_DIR="$torch" >"$work/out" 2>&1 || { cat "$work/out" >&2; fail "configuring with torch elsewhere"; }
rm "$site/elsewhere.pth"
ln -s "$torch" "$torch"/../torch-*.dist-info "$torch/../nvidia" "$site"
trained beside $job --nproc 2; same beside elsewhere

# No Python is in the process that trains.
"$work/env/bin/python" -m meshwright train $job --set run.name=long --set step_scheduler.max_steps=1000000 >"$work/out" 2>&1 & started=$!
for _ in $(seq 300); do
  runs=$(readlink "/proc/$started/exe" || true)
  [ "$runs" != "$prefix/bin/meshwright" ] || break
  sleep 0.1
done
kill -KILL $started && wait $started || true
[ "$runs" = "$prefix/bin/meshwright" ] || { cat "$work/out" >&2; fail "python -m meshwright is $runs"; }

# A plugin against the wheel, and a program in C.
[ "$("$meshwright" cmake-dir)" = "$prefix" ] || fail "meshwright cmake-dir"
"$meshwright" env --json >"$work/out"; expect "$site/torch (2.11." "$work/out"; expect "$prefix/lib/cmake/Meshwright" "$work/out"
make "$work/mine" Debug meshwright_mine
(cd mine && "$meshwright" train job.toml --nproc 2 --set step_scheduler.max_steps=2 >"$work/out" 2>&1) || { cat "$work/out" >&2; fail "the plugin"; }
expect "mine on 2 ranks" "$work/out"; expect "done: 2 steps" "$work/out"
printf '#include <meshwright/meshwright.h>\n#include <stdio.h>\nint main(void) { return puts(meshwright_version()) < 0; }\n' >version.c
${CC:-cc} version.c -I "$prefix/include" -L "$prefix/lib" -lmeshwright_c -Wl,-rpath,"$prefix/lib" -o version
[ "meshwright $(./version)" = "$("$meshwright" --version)" ] || fail "the C library"

# LibTorch of a wheel for CPUs: the same numbers, and a device is refused with what it wants.
rm "$site/torch" && mkdir -p "$site/torch/lib" && ln -s "$torch"/lib/{libtorch_cpu,libc10}.so "$torch"/lib/libgomp.so.1 "$site/torch/lib"
echo "__version__ = '2.11.0+cpu'" >"$site/torch/version.py"
trained cpus $job --nproc 2; same cpus elsewhere
refused "libtorch_cuda.so: cannot open shared object file" "$meshwright" train $job --set dist_env.device=cuda
expect "for CUDA 13 and its nvidia-* packages, in place of 2.11.0+cpu in $site/torch: python -m pip install --force-reinstall 'torch==2.11.*'" "$work/out"
"$meshwright" env >"$work/out"; expect "2.11.0+cpu (built with 2.11" "$work/out"

# Machines that pip would refuse, which find the installation in a folder that they share.
other() { refused "$1" "$work/env/bin/python" -c "import os, platform; $2; from meshwright.__main__ import main; main()"; }
other "error: this build is for x86_64 processors, and this machine is aarch64" "platform.machine = lambda: 'aarch64'"
other "error: this build needs glibc 2.34 or newer, and this system has glibc 2.31" "os.confstr = lambda name: 'glibc 2.31'"
refused "meshwright.LibraryError: this build is for x86_64 processors" "$work/env/bin/python" -c "import platform; platform.machine = lambda: 'aarch64'
import meshwright; meshwright.version()"
other "error: this build needs glibc 2.34 or newer, and this system has another C library" "os.confstr = lambda name: int('musl')"

pip uninstall --yes meshwright >"$work/out" 2>&1 || { cat "$work/out" >&2; fail "pip uninstall"; }
[ -z "$(find env -name '*meshwright*' ! -name '__pycache__')" ] || { find env -name '*meshwright*' >&2; fail "pip uninstall leaves files"; }
cd / && rm -rf "$work/dist" "$work/env" "$work/mine"
echo "$(basename "$wheel") trains, and a plugin is built against it"
