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
"$build/bin/meshwright" report "$work/long" "$work/short" --output "$work/runs.html"

# What the page itself can tell, as its title, which --dump-dom prints. PAGE: which one it is.
cat >"$work/asks.js" <<'JS'
addEventListener('load', () => {
  const bad = [], say = (ok, what) => { if (!ok) bad.push(what); };
  const all = (selector, of = document) => [...of.querySelectorAll(selector)], one = (selector, of = document) => of.querySelector(selector);
  const has = (what, text) => say(document.body.textContent.includes(text), what + ': "' + text + '"');
  const charts = all('.chart svg');
  if (PAGE === 'runs') {
    say(charts.length === 11, '11 charts, found ' + charts.length);
    for (const svg of charts) {
      const key = svg.parentNode.id, lines = all('.s', svg), output = one('output', svg.parentNode);
      say(lines.length === 2, key + ': 2 lines');
      for (const line of lines) {
        const d = one('.line', line).getAttribute('d'), n = d.match(/[ML]/g).length, box = line.getBBox();
        say(n >= 4 && n <= 320, key + ': ' + n + ' points');
        say(!/NaN|Infinity|undefined/.test(d), key + ': path ' + d.slice(0, 40));
        say(box.width > 300 || line !== lines[0], key + ': drawn ' + box.width);
      }
      say(all('text.end', svg).map(end => end.textContent).sort().join() === 'A,B', key + ': letters at the ends');
      say(all('.axis text.y', svg).length > 1, key + ': labels');
      const box = svg.getBoundingClientRect();
      svg.dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + box.width / 3, clientY: box.top + 20}));
      say(/^step [\d,]+ .*A .*\d/.test(output.textContent), key + ': under the pointer "' + output.textContent + '"');
      svg.dispatchEvent(new PointerEvent('pointerleave'));
      say(output.textContent === '' && !all('.cursor *', svg).length, key + ': the pointer left');
      svg.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight'}));
      say(/^step (8|9|20)  A /.test(output.textContent), key + ': keys ' + output.textContent);
    }
    say(all('.band', one('#chart-grad_norm')).length === 1, 'a shade where points stand for several steps');
    const loss = one('#chart-loss svg');
    say(/logarithmic/.test(loss.parentNode.textContent), 'the peak makes the axis logarithmic');
    say(all('.sign title', loss).length >= 5, 'signs on the axis, and of what is not finite');
    say(all('svg[aria-label="Ranks, pp 2 × dp_shard 4"]').length === 2, 'meshes');
    say(all('svg[aria-label="Timeline of schedule 1F1B"] rect.backward').length > 0, 'pipelines');
    say(all('svg[aria-label="Bytes of rank 0"]').length === 2, 'memory');
    say(all('rect.rank').length === 16 && all('rect.rank.mine').length === 2, 'ranks');
    say(document.title === '2 runs · Meshwright', 'title ' + document.title);
    for (const text of ['What differs in the configurations', 'optimizer.lr', '✕ fault', '▲ restart', '✓ done', 'All 2 keys, as they were resolved',
                        'Traffic of a step, as planned', 'Made by meshwright'])
      has('a part', text);
  } else if (PAGE === 'shade') {
    // A spread, none for long, a spread, a gap, a spread up to the end: steps 1 and 2; 4 and 5; 7, 8 and 9, twice as many corners as points.
    const corners = letter => one('.band').getAttribute('d').split(letter).length - 1;
    say(corners('M') === 3 && corners('Z') === 3 && corners('L') === 2 * 7 - 3, 'shade ' + one('.band').getAttribute('d'));
    say(!all('#chart-flat .band').length, 'no shade without a spread');
    say(!all('.problems, table').length, 'what is not there is not drawn');
    // Long axes have gaps, of which each is drawn.
    say(all('svg.picture text').filter(text => text.textContent === '…').length === 2 + 3 * (2 + 2 * 2), 'gaps');
    say(all('rect.frame').length === 3 && all('rect.rank').length === 3 * 2 * 4, 'frames and ranks');
    say(all('rect.rank.mine title').map(title => title.textContent).join() === 'rank 165, dp_replicate 6, cp 1, tp 9', 'mine');
    const part = name => all('rect.part.' + name).map(part => part.getBBox().width);
    say(part('computing')[0] === 195 && part('waiting')[0] === 97.5, 'times ' + part('computing'));
    const expert = all('rect.expert title').map(title => title.textContent);
    say(expert.join() === 'expert 0: 1.50 times the mean,expert 1: 0.50 times the mean', 'experts ' + expert);
  } else {
    say(!all('img, b:not([class]) b, main script').length && !window.hostile, 'text of a run is no markup');
    for (const text of ['<img src=x onerror=hostile=1>', '<script>hostile=1<' + '/script>', '! Not everything could be read', 'damaged'])
      has('as text', text);
  }
  say(document.documentElement.scrollWidth <= innerWidth + 1, 'not wider than the window: ' + document.documentElement.scrollWidth);
  const seen = getComputedStyle(document.body).backgroundColor.match(/\d+/g).map(Number);
  say((seen[0] < 128) === WANTED_DARK, 'dark: ' + seen);
  dispatchEvent(new Event('beforeprint'));
  say(all('details').every(part => part.open), 'unfolded on paper');
  document.title = bad.length ? 'BAD ' + bad.join(' | ') : 'GOOD';
});
JS
look() {  # NAME PAGE WANTED_DARK FLAGS...
  local name=$1 page=$2 dark=$3 title
  shift 3
  { cat "$work/$page.html"; echo "<script>const PAGE = '$page', WANTED_DARK = $dark;"; cat "$work/asks.js"; echo "</script>"; } >"$work/$name.html"
  timeout 120 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$work/profile" --enable-logging=stderr \
    --virtual-time-budget=3000 "$@" --dump-dom "file://$work/$name.html" >"$work/$name.dom" 2>"$work/$name.err" ||
    { tail -5 "$work/$name.err"; echo "$name: the browser failed"; exit 1; }
  if grep -a 'CONSOLE' "$work/$name.err"; then echo "$name: the console is not empty"; exit 1; fi
  title=$(grep -aom1 '<title>[^<]*' "$work/$name.dom" || true)
  echo "$name: $title"
  [ "$title" = "<title>GOOD" ] || exit 1
}
look light runs false --window-size=1200,1000
look dark runs true --window-size=1200,1000 --blink-settings=preferredColorScheme=0
look phone runs false --window-size=500,900

# Shapes that a run seldom has, put into the page as its data.
sed "s|\"data\"</script>|$(tr -d '\n' <"$source/tests/report/shapes.json")</script>|" "$source/apps/observe/report/page.html" >"$work/shade.html"
look shapes shade false --window-size=1200,1000

# What somebody else made: text, wherever it stands.
make_run "$work/foreign" 5 0.001
hostile='<img src=x onerror=hostile=1></script><script>hostile=1</script>'
mkdir -p "$work/foreign/checkpoints/step_00000003"
echo "$hostile" >"$work/foreign/checkpoints/step_00000003/meta.json"
echo "2026-11-24T09:02:00Z warning: $hostile" >>"$work/foreign/run.log"
printf '["%s"]\nx = "%s"\n' "$hostile" "$hostile" >>"$work/foreign/config.resolved.toml"
echo '{"world_size": "two"}' >"$work/foreign/plan.json"
"$build/bin/meshwright" report "$work/foreign" --output "$work/foreign.html" 2>/dev/null
look text foreign false --window-size=1200,1000

timeout 120 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$work/profile" --no-pdf-header-footer \
  --print-to-pdf="$work/page.pdf" "file://$work/runs.html" 2>/dev/null
[ "$(head -c 5 "$work/page.pdf")" = "%PDF-" ] || { echo "nothing was printed"; exit 1; }
# A broken script must be noticed, or the above would show nothing.
echo '<script>no_such_function()</script>' >>"$work/runs.html"
if (look broken runs false) >"$work/broken.out" 2>&1; then echo "an error on the console was not noticed"; exit 1; fi
grep -q 'no_such_function is not defined' "$work/broken.out" || { cat "$work/broken.out"; exit 1; }
echo "opened in $("$browser" --version 2>/dev/null)"
