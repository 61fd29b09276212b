#!/usr/bin/env bash
# Installs, moves the tree, and plans and trains from it.
. "$(dirname "$0")/common.sh"
rm -rf "$package" && mkdir -p "$work"
cmake --install "$build" --prefix "$package/first" >/dev/null
mv "$package/first" "$prefix"  # nothing may remember where it was installed
cd /  # and nothing may depend on the current folder

"$meshwright" --version >"$work/out"; expect "meshwright 0." "$work/out"
"$meshwright" plugins list >"$work/out"; expect "megatron_fsdp" "$work/out"; expect "installation" "$work/out"
"$meshwright" plan "$share/configs/hsdp_tp.toml" --world-size 8 --set model.config="$share/configs/models/llama-tiny.json" --set distributed.tp_size=1 >"$work/out"
expect "LlamaForCausalLM" "$work/out"

"$meshwright" man checkpoint ls | cmp - "$prefix/share/man/man1/meshwright-checkpoint-ls.1"
"$meshwright" completion bash | cmp - "$prefix/share/bash-completion/completions/meshwright"
bash -n "$prefix/share/bash-completion/completions/meshwright"
"$meshwright" completion zsh | cmp - "$prefix/share/zsh/vendor-completions/_meshwright"

# The Python package finds the tree that it lies in.
python3 -IBc 'import sys; sys.path.insert(0, sys.argv[1]); import meshwright
print(meshwright.prefix(), meshwright.plan(sys.argv[2], 4, overrides={"model.config": sys.argv[3]})["strategy"])' \
  "$share/python" "$share/configs/ddp_cpu.toml" "$share/configs/models/llama-tiny.json" >"$work/out" 2>&1 || { cat "$work/out" >&2; fail "the Python package"; }
expect "$(realpath "$prefix") ddp" "$work/out"
"$source/tools/site.sh" --links "$prefix/share/doc/meshwright"
job="$share/configs/ddp_cpu.toml --set model.config=$share/configs/models/llama-tiny.json --set step_scheduler.global_batch_size=8 --set dataset.seq_len=32"
trained alone $job
trained ddp $job --nproc 2; same ddp alone
trained fsdp2 $job --nproc 2 --set distributed.strategy=fsdp2; same fsdp2 alone
echo "the installed package plans and trains"
