#!/usr/bin/env bash
# What ./quickstart builds can be installed: all that `cmake --install` copies comes from its targets, but for the part for NVIDIA devices, which may be absent. The targets that it builds are
# read from the script itself.
. "$(dirname "$0")/common.sh"
targets=$(sed -n 's/^  configure_and_build release \(.*bundled_plugins\)$/\1/p' "$source/quickstart")
[ -n "$targets" ] || fail "which targets does ./quickstart build?"

# The install scripts of this build folder, with the part for NVIDIA devices at a place where nothing is: configured and not built.
(cd "$build" && find . -name cmake_install.cmake -not -path './package_test/*' -not -path './_deps/*' -exec cp --parents {} "$work" \;)
find "$work" -name cmake_install.cmake -exec sed -i -e "s#\"$build/\([^\"]*\)cmake_install.cmake\"#\"$work/\1cmake_install.cmake\"#" -e "s#$build/lib/libmeshwright_cuda.so#$work/absent/libmeshwright_cuda.so#g" {} +
grep -q "$work/absent" -r "$work" || echo "(the part for NVIDIA devices is not configured here)"
cmake -DCMAKE_INSTALL_PREFIX="$work/installed" -P "$work/cmake_install.cmake" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "installing without the part for NVIDIA devices"; }
if grep -q "$work/absent" -r "$work" --include=cmake_install.cmake; then expect "Without the part for NVIDIA devices, which was not built" "$work/log"; fi
[ ! -e "$work/installed/lib/libmeshwright_cuda.so" ] || fail "what was not built was installed"
"$work/installed/bin/meshwright" plugins list >"$work/out"; expect "megatron_fsdp" "$work/out"
"$work/installed/bin/meshwright" plan "$source/configs/first_fsdp2_cpu.toml" --world-size 2 --set model.config="$source/configs/models/llama-tiny.json" >"$work/out"; expect "fsdp2 on 2 ranks" "$work/out"

# Every file in bin and lib that the scripts name, which a whole build always has, is made for those targets.
[ "$generator" = Ninja ] || { echo "made with $generator: its targets cannot be asked what they make" >&2; exit 1; }
(cd "$build" && ninja -t commands $targets) | tr ' ' '\n' | sort -u >"$work/made"  # their outputs are among the words
grep -rhoE "\"$build/(bin|lib)/[^\"*]*\"" "$work" --include=cmake_install.cmake | tr -d '"' | sed "s#^$build/##" | sort -u | while read -r file; do
  [ -f "$build/$file" ] || continue  # a folder of the build's RPATH
  grep -qxF "$file" "$work/made" || fail "$file is installed, but $targets do not make it"
done
[ "$(grep -c 'libmeshwright_' "$work/made")" -ge 8 ] || fail "ninja tells too little"
echo "what ./quickstart builds can be installed"
