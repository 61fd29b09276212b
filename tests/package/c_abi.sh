#!/usr/bin/env bash
# The program of docs/c_abi.md, compiled by a C compiler alone and by CMake against the installed package: on one rank, on two, and as the program
# trains. The examples of other languages, where their compilers are.
. "$(dirname "$0")/common.sh"
awk '/^```c$/ { on = 1; next } /^```$/ { on = 0 } on' "$source/docs/c_abi.md" >train.c
[ "$(wc -l <train.c)" -gt 40 ] || fail "docs/c_abi.md has no program"
strict="-std=c99 -Wall -Wextra -Werror -pedantic"
${CC:-cc} $strict train.c -I "$prefix/include" -L "$prefix/lib" -lmeshwright_c -Wl,-rpath,"$prefix/lib" -o train
sed -e "s#configs/models#$share/configs/models#" -e 's/global_batch_size = 32/global_batch_size = 8/' -e 's/seq_len = 128/seq_len = 32/' \
  "$share/configs/ddp_cpu.toml" >job.toml
numbers() { sed 's/, "step_ms".*//' "runs/$1/metrics.jsonl"; }
alike() { diff <(numbers "$1") <(numbers "$2") >"$work/out" || { cat "$work/out" >&2; fail "$1 and $2 have other numbers"; }; }
reference() { "$meshwright" train job.toml --set step_scheduler.max_steps=5 --set optimizer.lr=1e-3 --set run.name="$1" --nproc "$2" >"$work/out" 2>&1 || { cat "$work/out" >&2; fail "training $1"; }; }

./train job.toml >one 2>&1 || { cat one >&2; fail "the program of docs/c_abi.md"; }
expect "learning rate 0.001" one; expect "step 4: loss" one; expect "it writes: " one; expect "5 steps done" one
[ -e runs/from_c/checkpoints/step_00000003 ] || fail "the callback's checkpoint is missing"
reference program 1; alike from_c program

rm -r runs/from_c
port=$((20000 + RANDOM % 10000))
for rank in 0 1; do
  RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port ./train job.toml >two.$rank 2>&1 &
  pids[rank]=$!
done
for rank in 0 1; do wait "${pids[rank]}" || { cat two.* >&2; fail "the program of docs/c_abi.md on two ranks"; }; done
expect "5 steps done" two.0
[ "$(cat two.1)" = "learning rate 0.001" ] || { cat two.1 >&2; fail "rank 1 says more"; }
reference program2 2; alike from_c program2

refused "error[E0209]" ./train /no/such.toml
sed -i 's/^seq_len.*/&\nseq_lenn = 1/' job.toml; refused "did you mean dataset.seq_len?" ./train job.toml; sed -i /seq_lenn/d job.toml

mkdir cmake && cp train.c cmake
printf 'cmake_minimum_required(VERSION 3.25)\nproject(train LANGUAGES C CXX)\nfind_package(Meshwright REQUIRED)\nadd_executable(train train.c)\ntarget_link_libraries(train PRIVATE Meshwright::c)\n' >cmake/CMakeLists.txt
make "$work/cmake" Release
rm -r runs/from_c; cmake/build/train job.toml >out 2>&1 || { cat out >&2; fail "the program by CMake"; }
alike from_c program

if command -v rustc >/dev/null; then
  rustc -O "$source/examples/c_abi/train.rs" -L "$prefix/lib" -C link-arg=-Wl,-rpath,"$prefix/lib" -o rust >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "rustc"; }
  ./rust job.toml >out 2>&1 || { cat out >&2; fail "the example in Rust"; }
  expect "20 steps" out
else
  echo "(rustc is not installed)"
fi
echo "C trains with the installed package"
