#!/usr/bin/env bash
# The recipes as a person copies them: each prints what its expected.txt says. That of embed is built and run by embed.sh.
. "$(dirname "$0")/common.sh"
recipes="pretrain continue_pretraining fine_tune lora experts long_context slurm strategy"
cp -r "$prefix/share/doc/meshwright/examples/recipes" .
cd recipes
[ "$(echo $recipes embed | tr ' ' '\n' | sort)" = "$(ls -d -- */ | tr -d /)" ] || fail "a folder of examples/recipes is not run"
export PATH=$prefix/bin:$PATH XDG_CACHE_HOME=$work/cache CMAKE_BUILD_TYPE=Debug CMAKE_GENERATOR=$generator CMAKE_TOOLCHAIN_FILE=$work/quick.cmake
echo 'set(CMAKE_CXX_FLAGS_DEBUG "" CACHE STRING "")' >"$CMAKE_TOOLCHAIN_FILE"  # without symbols, which cost most
unset RUN MODEL TEXT CHATS CHAT_TEMPLATE NPROC DEVICE
for recipe in $recipes; do
  printed $recipe
  expect "](recipes/$recipe)" "$source/examples/README.md"
done

# Input of one's own, right and wrong.
CHATS=$work/rows.jsonl
export CHATS
echo '{"prompt": "two plus two?", "completion": "four"}' >"$CHATS"
RUN=mine fine_tune/run.sh --set step_scheduler.global_batch_size=2 --set step_scheduler.local_batch_size=1 >"$work/out" 2>&1 || { cat "$work/out" >&2; fail "rows of one's own"; }
expect "$CHATS, 1 row" "$work/out"
echo '{"messages": [{"role": "user"}]' >"$CHATS"; refused "$CHATS:1" lora/run.sh
MODEL=$work/nowhere refused "$work/nowhere" fine_tune/run.sh
unset CHATS
MODEL=$work/nowhere refused "CHATS: names the rows" fine_tune/run.sh
cp -r lora ../alone; refused "name a model: MODEL=" ../alone/run.sh
TEXT=$work/nowhere refused "$work/nowhere" pretrain/run.sh
echo "the recipes train with the installed package"
