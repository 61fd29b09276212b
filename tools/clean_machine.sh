#!/usr/bin/env bash
# Tries the packages on machines that have nothing else: fetches what they depend on, unpacks it into a folder whose dpkg knows it as installed, and
# works there by chroot. Debian 12, of which this build is: installs the Debian packages (dpkg refuses what it lacks), sees that the want of LibTorch is
# told, trains with its folder beside. Debian 12 and 13: the same with the archive; Debian 13 refuses the Debian packages by the names of what they
# need. Debian 12 and 13 with Python: installs the wheel beside torch, trains on two ranks and with a plugin that is built there. Debian 11, whose glibc
# is too old: is refused. Needs root.
#   tools/clean_machine.sh [BUILD_DIR]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$(realpath "${1:-$root/build}")
torch=$(sed -n 's/^MESHWRIGHT_TORCH_DIR:PATH=//p' "$build/CMakeCache.txt")
host=$(. /etc/os-release && echo "$VERSION_CODENAME")
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
quiet() { "$@" >"$work/log" 2>&1 || { tail "$work/log"; exit 1; }; }
essential="base-files bash coreutils dash dpkg libc-bin sed grep tar gzip perl-base diffutils findutils debianutils util-linux"

# unpacked NAME SUITE PACKAGE...: the folder $work/NAME, with these packages of a release of Debian and what they depend on.
unpacked() {
  local clean=$work/$1 suite=$2 apt=$work/apt_$2 package options
  shift 2
  mkdir -p "$apt"/{lists/partial,archives/partial} "$clean"/{dev,proc,tmp,packages,opt/python} "$clean"/var/lib/dpkg/{info,updates,triggers}
  : >"$work/status"  # as on a machine without any package
  options=(-qq -y -o Dir::State::status="$work/status" -o Dir::Cache="$apt" -o APT::Sandbox::User=root)
  if [ "$suite" != "$host" ]; then  # from where this machine has its own
    echo "deb $(apt-get indextargets --format '$(REPO_URI)' "Codename: $host" | head -1) $suite main" >"$apt/sources.list"
    options+=(-o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$apt/lists")
    quiet apt-get "${options[@]}" update
  fi
  rm -f "$apt"/archives/*.deb
  quiet apt-get "${options[@]}" --no-install-recommends --download-only install "$@"
  for package in "$apt"/archives/*.deb; do
    dpkg-deb -x "$package" "$clean"
    { dpkg-deb -f "$package" | sed '1a Status: install ok installed'; echo; } >>"$clean/var/lib/dpkg/status"
  done
  echo "root:x:0:0:root:/root:/bin/bash" >"$clean/etc/passwd"; echo "root:x:0:" >"$clean/etc/group"
  # What scripts of the packages would have made, and pip wants.
  if [ -e "$clean/usr/share/ca-certificates" ]; then cat "$clean"/usr/share/ca-certificates/*/*.crt >"$clean/etc/ssl/certs/ca-certificates.crt"; fi
}
# inside NAME: runs the script on standard input there.
inside() {
  local clean=$work/$1
  { echo 'set -euo pipefail; fail() { echo "FAILED: $*" >&2; exit 1; }; ldconfig'; cat; } >"$clean/inside.sh"
  clean=$clean torch=$torch unshare -m bash -ec '
    mount --bind "$torch/.." "$clean/opt/python"; mount -t proc proc "$clean/proc"
    mount -t tmpfs none "$clean/tmp"; mount -t tmpfs none "$clean/dev"; mkdir "$clean/dev/shm"
    mknod -m 666 "$clean/dev/null" c 1 3; mknod -m 666 "$clean/dev/urandom" c 1 9
    exec env -i PATH=/usr/bin:/usr/sbin:/bin:/sbin HOME=/root chroot "$clean" /bin/bash /inside.sh'
}

(cd "$build" && quiet cpack -B "$work/packed")
quiet "$root/tools/wheel.sh" "$build" "$work/packed"
depends=$(for package in "$work"/packed/*.deb; do dpkg-deb -f "$package" Depends; done | sed 's/([^)]*)//g; s/|[^,]*//g; s/,/ /g' | tr ' ' '\n' | sed '/^meshwright$/d; /^$/d' | sort -u)
unpacked packages "$host" $depends $essential
clean=$work/packages
cp "$work"/packed/*.deb "$work"/packed/*.tar.gz "$root/configs/models/llama-tiny.json" "$clean/packages"
# A package that says nothing of its needs would be installed anywhere: this dpkg knows what is missing.
sed '/^Package: libstdc++6$/,/^$/d' "$clean/var/lib/dpkg/status" >"$clean/packages/without_libstdc++"
cat >"$clean/packages/tried.sh" <<'END'
job="configs/ddp_cpu.toml --set model.config=/packages/llama-tiny.json --set step_scheduler.global_batch_size=8 --set dataset.seq_len=32 --set step_scheduler.max_steps=3"
tried() {  # tried NAME PREFIX: without LibTorch, then with it beside
  local train="$2/bin/meshwright train $2/share/meshwright/$job --set run.name=$1 --nproc 2"
  cd /tmp
  "$2/bin/meshwright" plan "$2"/share/meshwright/$job --world-size 2 >/dev/null || fail "$1: plan"
  $train >out 2>&1 && fail "$1: trained without LibTorch"
  grep -q "ln -s <the torch folder of the LibTorch wheel> $2/lib/meshwright/torch" out || { cat out; fail "$1: the want of LibTorch"; }
  ln -s /opt/python/torch "$2/lib/meshwright/torch"
  $train >out 2>&1 && grep "done: 3 steps" out || { cat out; fail "$1: train"; }
  "$2/bin/meshwright" plugins check "$2/lib/meshwright/plugins/libmeshwright_fsdp2.so" >out 2>&1 || { cat out; fail "$1: plugins check"; }
  tail -1 out
}
END
inside packages <<'END'
. /packages/tried.sh
mkdir -p /tmp/lacking/{info,updates,triggers} && cp /packages/without_libstdc++ /tmp/lacking/status
dpkg --admindir=/tmp/lacking -i /packages/*.deb >/tmp/log 2>&1 && fail "dpkg installs them without libstdc++6"
grep -q "meshwright depends on libstdc++6" /tmp/log || { cat /tmp/log; fail "dpkg does not name libstdc++6"; }
dpkg -i /packages/*.deb >/tmp/log 2>&1 || { cat /tmp/log; fail "dpkg"; }
dpkg -s meshwright meshwright-dev | grep -c "^Status: install ok installed" | grep -qx 2 || fail "dpkg does not know both as installed"
tried installed /usr
cd /tmp && meshwright plugins new acme_clean >/dev/null && CXX=g++ cmake -S acme_clean -B acme_build -DCMAKE_BUILD_TYPE=Debug -DBUILD_TESTING=OFF >out 2>&1 \
  && cmake --build acme_build --target meshwright_acme_clean >>out 2>&1 || { tail -20 out; fail "a plugin with meshwright-dev"; }
meshwright plugins inspect acme_build/libmeshwright_acme_clean.so >out 2>&1 && grep -q "facts hash" out || { cat out; fail "the new plugin"; }
END
echo "the packages train on a clean Debian"
cp -r "$clean/packages" "$work/given"
rm -rf "$clean"

# The archive brings all but LibTorch, so that these machines have nothing of ours.
for suite in bookworm trixie; do
  unpacked archive "$suite" libstdc++6 libgcc-s1 zlib1g g++ cmake make $essential
  cp "$work"/given/* "$work/archive/packages"
  inside archive <<'END'
. /packages/tried.sh
mkdir /elsewhere && tar -xzf /packages/*.tar.gz -C /elsewhere --strip-components=1
tried unpacked /elsewhere
cd /tmp && /elsewhere/bin/meshwright plugins new mine >/dev/null && CXX=g++ cmake -S mine -B build -DCMAKE_BUILD_TYPE=Debug -DBUILD_TESTING=OFF \
  -DCMAKE_PREFIX_PATH=/elsewhere >out 2>&1 && cmake --build build --target meshwright_mine >>out 2>&1 || { tail -20 out; fail "a plugin"; }
dpkg -i /packages/meshwright_*.deb >out 2>&1 && fail "dpkg installs what it has no libraries for"
grep -q "meshwright depends on libboost" out || { cat out; fail "dpkg does not name what is missing"; }
END
  echo "the archive trains on a clean Debian ($suite), and a plugin is built against it"
  rm -rf "$work/archive"
done

for suite in bookworm trixie; do
  unpacked wheel "$suite" python3 python3-venv g++ cmake make $essential
  cp "$work"/packed/*.whl "$work/wheel/packages"
  inside wheel <<'END'
cd /tmp; PATH=/tmp/env/bin:$PATH
python3 -m venv env
pip install --no-index /packages/*.whl >out 2>&1 && fail "pip installs it without torch"
grep -q "No matching distribution found for torch==2.11" out || { cat out; fail "pip does not name torch"; }
pip install --no-index --no-deps /packages/*.whl >out 2>&1 || { cat out; fail "pip"; }
share=$(meshwright cmake-dir)/share/meshwright
train="meshwright train $share/configs/ddp_cpu.toml --set model.config=$share/configs/models/llama-tiny.json --set step_scheduler.global_batch_size=8
  --set dataset.seq_len=32 --set step_scheduler.max_steps=3 --nproc 2"
$train >out 2>&1 && fail "trained without LibTorch"
grep -q "python -m pip install 'torch==2.11" out || { cat out; fail "the want of LibTorch"; }
ln -s /opt/python/torch /opt/python/torch-*.dist-info /opt/python/nvidia env/lib/python3*/site-packages
$train >out 2>&1 && grep "done: 3 steps" out || { cat out; fail "train"; }
timeout 600 meshwright quickstart >out 2>&1 && grep "^done: 200 steps" out || { cat out; fail "quickstart"; }  # half a minute on two free cores
meshwright plugins new mine >out
CXX=g++ cmake -S mine -B build -DCMAKE_BUILD_TYPE=Debug -DBUILD_TESTING=OFF -DCMAKE_PREFIX_PATH="$(meshwright cmake-dir)" >out 2>&1 \
  && cmake --build build --target meshwright_mine >>out 2>&1 || { tail -20 out; fail "a plugin"; }
cd mine && ln -s ../build build && meshwright train job.toml --nproc 2 --set step_scheduler.max_steps=2 >out 2>&1 && grep "done: 2 steps" out || { cat out; fail "the plugin"; }
END
  echo "the wheel trains on a clean Debian ($suite), and a plugin is built against it"
  rm -rf "$work/wheel"
done

unpacked older bullseye python3 python3-pip $essential
cp "$work"/packed/*.whl "$work"/given/*.tar.gz "$work/older/packages"
inside older <<'END'
cd /tmp
python3 -m pip install --no-index --no-deps /packages/*.whl >out 2>&1 && fail "pip takes it"
grep -q "is not a supported wheel on this platform" out || { cat out; fail "pip does not say why"; }
python3 -m zipfile -e /packages/*.whl site
PYTHONPATH=site python3 -m meshwright --version >out 2>&1 && fail "it runs with an old glibc"
grep -qx "error: this build needs glibc 2.34 or newer, and this system has glibc 2.31: use .*" out || { cat out; fail "the want of a newer glibc"; }
mkdir archive && tar -xzf /packages/*.tar.gz -C archive --strip-components=1
archive/bin/meshwright --version >out 2>&1 && fail "the archive runs with an old glibc"
grep -qx "error: this build needs glibc 2.34 or newer, and this system has glibc 2.31: use .*" out || { cat out; fail "the archive's want of a newer glibc"; }
END
echo "an older Debian is told so"

# The image: its user has no rights, and trains where it stands.
export MESHWRIGHT_IMAGES=$work/images
quiet "$root/tools/image.sh" "$build" meshwright:clean --build-arg PIP="--no-deps --no-index"
in_image() { buildah --storage-driver vfs --root "$MESHWRIGHT_IMAGES/storage" --runroot "$MESHWRIGHT_IMAGES/run" "$@"; }
container=$(in_image from meshwright:clean)
site=/opt/meshwright/lib/python3.11/site-packages
quiet in_image run --isolation chroot -v "$torch:$site/torch:ro" -v "$torch/../nvidia:$site/nvidia:ro" "$container" -- \
  sh -c 'test "$(id -u)" = 1000 && cd && meshwright quickstart --steps 10'
grep -q "Try next" "$work/log" || { tail "$work/log"; exit 1; }
echo "the image trains as another user than root"
