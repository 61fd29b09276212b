#!/usr/bin/env bash
# Tries the packages on a Debian that has nothing else: fetches what they depend on, unpacks it into a folder whose dpkg knows it as installed,
# and there, by chroot, installs the packages (dpkg refuses what it lacks), sees that the want of LibTorch is told, trains with its folder beside,
# and does the same with the archive. Needs root.
#   tools/clean_machine.sh [BUILD_DIR]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$(realpath "${1:-$root/build}")
torch=$(sed -n 's/^MESHWRIGHT_TORCH_DIR:PATH=//p' "$build/CMakeCache.txt")
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
clean=$work/root
mkdir -p "$work"/apt/archives/partial "$clean"/{dev,proc,tmp,packages,opt/python}
(cd "$build" && cpack -B "$work/packed") >"$work/log" 2>&1 || { tail "$work/log"; exit 1; }
cp "$work"/packed/*.deb "$work"/packed/*.tar.gz "$root/configs/models/llama-tiny.json" "$clean/packages"

depends=$(for package in "$work"/packed/*.deb; do dpkg-deb -f "$package" Depends; done | sed 's/([^)]*)//g; s/|[^,]*//g; s/,/ /g' | tr ' ' '\n' | sed '/^meshwright$/d; /^$/d' | sort -u)
essential="base-files bash coreutils dash dpkg libc-bin sed grep tar gzip perl-base diffutils findutils debianutils util-linux"
: >"$work/status"  # as on a machine without any package
apt-get -qq -y --no-install-recommends --download-only -o Dir::State::status="$work/status" -o Dir::Cache="$work/apt" -o APT::Sandbox::User=root \
  install $depends $essential >"$work/log" 2>&1 || { tail "$work/log"; exit 1; }
for package in "$work"/apt/archives/*.deb; do
  dpkg-deb -x "$package" "$clean"
  { dpkg-deb -f "$package" | sed '1a Status: install ok installed'; echo; } >>"$work/installed"
done
echo "root:x:0:0:root:/root:/bin/bash" >"$clean/etc/passwd"; echo "root:x:0:" >"$clean/etc/group"
mkdir -p "$clean"/var/lib/dpkg/{info,updates,triggers}
cp "$work/installed" "$clean/var/lib/dpkg/status"
# A package that says nothing of its needs would be installed anywhere: this dpkg knows what is missing.
sed '/^Package: libstdc++6$/,/^$/d' "$work/installed" >"$clean/packages/without_libstdc++"

cat >"$clean/inside.sh" <<'END'
set -euo pipefail
fail() { echo "FAILED: $*" >&2; exit 1; }
job="configs/ddp_cpu.toml --set model.config=/packages/llama-tiny.json --set step_scheduler.global_batch_size=8 --set dataset.seq_len=32 --set step_scheduler.max_steps=3"
tried() {  # tried NAME PREFIX: without LibTorch, then with it beside
  local train="$2/bin/meshwright train $2/share/meshwright/$job --set run.name=$1 --nproc 2"
  cd /tmp
  "$2/bin/meshwright" plan "$2"/share/meshwright/$job --world-size 2 >/dev/null || fail "$1: plan"
  $train >out 2>&1 && fail "$1: trained without LibTorch"
  grep -q "ln -s <the torch folder of the LibTorch wheel> $2/lib/meshwright/torch" out || { cat out; fail "$1: the want of LibTorch"; }
  ln -s /opt/python/torch "$2/lib/meshwright/torch"
  $train >out 2>&1 && grep "done: 3 steps" out || { cat out; fail "$1: train"; }
  "$2/bin/meshwright" plugins check "$2/lib/meshwright/plugins/libmeshwright_fsdp2.so" | tail -1
}
ldconfig
mkdir -p /tmp/lacking/{info,updates,triggers} && cp /packages/without_libstdc++ /tmp/lacking/status
dpkg --admindir=/tmp/lacking -i /packages/*.deb >/tmp/log 2>&1 && fail "dpkg installs them without libstdc++6"
grep -q "meshwright depends on libstdc++6" /tmp/log || { cat /tmp/log; fail "dpkg does not name libstdc++6"; }
dpkg -i /packages/*.deb >/tmp/log 2>&1 || { cat /tmp/log; fail "dpkg"; }
dpkg -s meshwright meshwright-dev | grep -c "^Status: install ok installed" | grep -qx 2 || fail "dpkg does not know both as installed"
tried installed /usr
cd /tmp && meshwright plugins new acme_clean >/dev/null && CXX=g++ cmake -S acme_clean -B acme_build -DCMAKE_BUILD_TYPE=Debug -DBUILD_TESTING=OFF >out 2>&1 \
  && cmake --build acme_build --target meshwright_acme_clean >>out 2>&1 || { tail -20 out; fail "a plugin with meshwright-dev"; }
meshwright plugins inspect acme_build/libmeshwright_acme_clean.so | grep -q "facts hash" || fail "the new plugin"
mkdir /elsewhere && tar -xzf /packages/*.tar.gz -C /elsewhere --strip-components=1
tried unpacked /elsewhere
END
export clean torch
unshare -m bash -ec '
  mount --bind "$torch/.." "$clean/opt/python"; mount -t proc proc "$clean/proc"
  mount -t tmpfs none "$clean/tmp"; mount -t tmpfs none "$clean/dev"; mkdir "$clean/dev/shm"
  mknod -m 666 "$clean/dev/null" c 1 3; mknod -m 666 "$clean/dev/urandom" c 1 9
  exec env -i PATH=/usr/bin:/usr/sbin:/bin:/sbin HOME=/root chroot "$clean" /bin/bash /inside.sh'
echo "the packages train on a clean Debian"
