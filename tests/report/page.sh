#!/usr/bin/env bash
# Opens a page of `meshwright report` in headless chromium: nothing on its console, every chart with its points, numbers under the pointer and by
# the keyboard, light and dark, nothing wider than a phone, everything unfolded on paper.
set -euo pipefail
build=$1 source=$2
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
[ -n "$browser" ] || { echo "skipped: no chromium is installed (apt-get install chromium)"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Two runs, one of them with 5,000 steps, a peak and a loss that is not finite; the other went on after a fault.
make_run() {  # FOLDER STEPS LR
  mkdir -p "$1"
  awk -v n="$2" -v lr="$3" 'BEGIN { for (s = 0; s < n; s++) {
    loss = s == 70 ? "null" : s == 90 ? 400 : 2 + 3 * exp(-s / 40)
    printf "{\"step\": %d, \"completed_steps\": %d, \"loss\": %s, \"grad_norm\": %.4f, \"lr\": %g, \"tokens\": 512, \"step_ms\": %.1f, \"tokens_per_second\": %.1f, \"memory_bytes\": %d, \"mfu\": %.3f, \"exposed_comm_ms\": %.1f, \"slowest_ms\": %s, \"rank_work_ms\": %d, \"rank_work_ms_least\": %d, \"rank_work_ms_most\": %d}\n",
      s, s + 1, loss, 0.5 + (s % 7) / 10, lr, 20 + s % 5, 512000 / (20 + s % 5), 2^24 + s, 0.4 + (s % 5) / 100, 3 + s % 4, s == 0 ? "null" : s % 3, 15 + s % 2, 14, 17 + s % 3
    if ((s + 1) % 20 == 0) printf "{\"step\": %d, \"completed_steps\": %d, \"validation_loss\": %.4f}\n", s, s + 1, 2.1 + 3 * exp(-s / 40) } }' >"$1/metrics.jsonl"
  printf '[optimizer]\nlr = %s\n[run]\nname = "x"\n' "$3" >"$1/config.resolved.toml"
  echo '{"world_size": 8, "device": "cpu"}' >"$1/env.json"
  cat >"$1/run.log" <<'LOG'
2026-11-24T09:00:00Z fsdp2 on 8 ranks: LlamaForCausalLM, 1,000 parameters; batch 1 x 1 x 2 samples of 64 tokens
2026-11-24T09:00:20Z step 60/100  loss 4.5000
2026-11-24T09:00:21Z error[E0505]: rank 3 was ended by signal 9 (SIGKILL)
2026-11-24T09:00:22Z restart 1 of 2 after a rank that died
2026-11-24T09:00:30Z continues after step 50: checkpoints/step_00000050
2026-11-24T09:01:00Z done: 100 steps in 1 min 00 s; results in x
LOG
}
make_run "$work/long" 5000 0.001
make_run "$work/short" 100 0.002
(cd "$source" && "$build/bin/meshwright" plan configs/pipeline_cpu.toml --world-size 8 --json) >"$work/short/plan.json"
cp "$work/short/plan.json" "$work/long/plan.json"
"$build/bin/meshwright" report "$work/long" "$work/short" --output "$work/page.html"

# What the page itself can tell, as its title, which --dump-dom prints.
cat >"$work/asks.js" <<'JS'
addEventListener('load',()=>{const bad=[],say=(ok,what)=>{if(!ok)bad.push(what);};
const charts=[...document.querySelectorAll('.chart svg')];
say(charts.length===11,'11 charts, found '+charts.length);
for(const svg of charts){const key=svg.parentNode.id;
const lines=[...svg.querySelectorAll('.s')];say(lines.length===2,key+': 2 lines');
for(const g of lines){const n=g.dataset.points.split(';').length,d=g.querySelector('.line').getAttribute('d');
say(n>=5&&n<=320,key+': '+n+' points');say(!/NaN|inf/.test(d),key+': path '+d.slice(0,40));
const b=g.getBBox();say(b.width>300||g!==lines[0],key+': drawn '+b.width);}
const r=svg.getBoundingClientRect();
svg.dispatchEvent(new PointerEvent('pointermove',{clientX:r.left+r.width/3,clientY:r.top+20}));
const out=svg.parentNode.querySelector('output');
say(/^step [\d,]+ .*A .*\d/.test(out.textContent),key+': under the pointer "'+out.textContent+'"');
svg.dispatchEvent(new PointerEvent('pointerleave'));say(out.textContent==='',key+': the pointer left');
svg.dispatchEvent(new KeyboardEvent('keydown',{key:'ArrowRight'}));say(out.textContent!=='',key+': keys');}
const loss=document.querySelector('#chart-loss svg');
say(/logarithmic/.test(loss.parentNode.textContent),'the peak makes the axis logarithmic');
say(loss.querySelectorAll('.sign title').length>0,'signs on the axis');
say(document.querySelectorAll('svg.picture').length>=4,'pictures of mesh, memory, pipeline');
say(document.documentElement.scrollWidth<=innerWidth+1,'not wider than the window: '+document.documentElement.scrollWidth+' of '+innerWidth);
const seen=getComputedStyle(document.body).backgroundColor.match(/\d+/g).map(Number);
const dark=seen[0]<128;say(dark===WANTED_DARK,'dark: '+seen);
dispatchEvent(new Event('beforeprint'));say([...document.querySelectorAll('details')].every(d=>d.open),'unfolded on paper');
document.title=bad.length?'BAD '+bad.join(' | '):'GOOD';});
JS
look() {  # NAME WANTED_DARK FLAGS...
  local name=$1 dark=$2 title
  shift 2
  { cat "$work/page.html"; echo "<script>"; sed "s/WANTED_DARK/$dark/" "$work/asks.js"; echo "</script>"; } >"$work/$name.html"
  timeout 120 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$work/profile" --enable-logging=stderr \
    --virtual-time-budget=3000 "$@" --dump-dom "file://$work/$name.html" >"$work/$name.dom" 2>"$work/$name.err" ||
    { tail -5 "$work/$name.err"; echo "$name: the browser failed"; exit 1; }
  if grep -a 'CONSOLE' "$work/$name.err"; then echo "$name: the console is not empty"; exit 1; fi
  title=$(grep -aom1 '<title>[^<]*' "$work/$name.dom" || true)
  echo "$name: $title"
  [ "$title" = "<title>GOOD" ] || exit 1
}
look light false --window-size=1200,1000
look dark true --window-size=1200,1000 --blink-settings=preferredColorScheme=0
look phone false --window-size=500,900
timeout 120 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$work/profile" --no-pdf-header-footer \
  --print-to-pdf="$work/page.pdf" "file://$work/page.html" 2>/dev/null
[ "$(head -c 5 "$work/page.pdf")" = "%PDF-" ] || { echo "nothing was printed"; exit 1; }
# A broken script must be noticed, or the above would show nothing.
echo '<script>no_such_function()</script>' >>"$work/page.html"
if (look broken false) >"$work/broken.out" 2>&1; then echo "an error on the console was not noticed"; exit 1; fi
grep -q 'no_such_function is not defined' "$work/broken.out" || { cat "$work/broken.out"; exit 1; }
echo "opened in $("$browser" --version 2>/dev/null)"
