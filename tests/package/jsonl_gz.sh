#!/usr/bin/env bash
# The example of a data set: built against the package, trained on two layouts to the same losses; bad files are refused.
. "$(dirname "$0")/common.sh"
plugin=$work/jsonl_gz
cp -r "$source/examples/jsonl_gz" "$plugin"
make "$plugin" Debug
own_tests "$plugin" '^(conformance|unit_tests)$'

job="$plugin/job.toml --set model.config=$plugin/model.json --set dataset.path=$plugin/data/lines.jsonl.gz"
library=$plugin/build/libmeshwright_jsonl_gz.so
"$meshwright" plugins inspect "$library" >"$work/out"; expect "data set jsonl_gz" "$work/out"; expect "spacing_kib" "$work/out"
"$meshwright" plugins list --file "$plugin/job.toml" --json >"$work/out"; expect '"jsonl_gz"' "$work/out"
"$meshwright" validate $job >"$work/out" 2>&1 || { cat "$work/out" >&2; fail "validate"; }
trained alone $job --nproc 1 --set dataset.workers=0
trained cut $job --nproc 2 --set distributed.tp_size=2 --set distributed.sequence_parallel=true
same alone cut

# Bad input: before anything trains, with file, place and reason.
bad() {  # bad NAME TEXT: this file is refused
  local status=0
  "$meshwright" train $job --set dataset.path="$1" --set run.name=bad >"$work/out" 2>&1 || status=$?
  [ $status = 7 ] || fail "exit status $status for $1"
  expect "$2" "$work/out"
}
head -c 3000 "$plugin/data/lines.jsonl.gz" >"$work/cut.jsonl.gz"
bad "$work/cut.jsonl.gz" "cut.jsonl.gz: byte 3000: the compressed data end early"
{ gzip -dc "$plugin/data/lines.jsonl.gz" | head -5; echo '{"text": "no end}'; } | gzip >"$work/broken.jsonl.gz"
bad "$work/broken.jsonl.gz" "broken.jsonl.gz:6: no JSON: "
echo '{"tokens": [1, 256, 3]}' | gzip >"$work/tokens.jsonl.gz"
bad "$work/tokens.jsonl.gz" "tokens.jsonl.gz:1: the token 256 lies outside of the model's vocabulary of 256"
echo "the example of a data set trains alike on two layouts"
