#!/usr/bin/env bash
# The examples of model families: built against the package, their own tests, trained on two layouts to the same losses. tests/models has the kit.
. "$(dirname "$0")/common.sh"
for example in gpt2 encoder; do
  plugin=$work/$example
  cp -r "$source/examples/$example" "$plugin"
  make "$plugin" Debug
  own_tests "$plugin" '^(plan|train)$'
  job="$plugin/job.toml"
  [ $example != gpt2 ] || job="$job --set model.config=$plugin/model.json"
  library=$plugin/build/libmeshwright_$example.so
  "$meshwright" plugins inspect "$library" >"$work/out"; expect "model $example" "$work/out"
  "$meshwright" validate $job >"$work/out" 2>&1 || { cat "$work/out" >&2; fail "validate"; }
  # Its layers are found whatever they are called, and the search knows how wide they are.
  "$meshwright" plan $job --world-size 4 --machine h100x4 --search --top 1 >"$work/out" 2>&1 || { cat "$work/out" >&2; fail "search"; }
  expect "distributed.strategy=" "$work/out"
  trained ${example}_alone $job --nproc 1
  trained ${example}_cut $job --nproc 2 --set distributed.tp_size=2
  same ${example}_alone ${example}_cut
done
echo "the examples of models train alike on two layouts"
