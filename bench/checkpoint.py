#!/usr/bin/env python3
"""Saving and loading beside PyTorch's distributed checkpoint, in turns in one run: 500 MB of weights and AdamW state over 2 ranks.

    bench/checkpoint.py [--build build] [--deps .deps] [--rounds 3] [--folder DIR ...]

Each side saves and loads several times a round; a round's figure is the median, the ratio is taken round by round. Both sync their files
before a save counts as done. --folder names where checkpoints go: a disk (whose speed sets the pace of both), or /dev/shm for what the
programs themselves take. Loads read from the page cache on both sides; ours checks every byte against its checksum, PyTorch's has none.
"pause" is how long training stood still for an asynchronous save (for PyTorch: until async_save returns), "of a save" its share of one that
waits, and "slower" what the steps beside such a save took longer in sum, since copying and writing share the processor with training.
"""
import argparse, json, os, re, shutil, signal, statistics, subprocess, sys, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODEL = dict(architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=256, hidden_size=512, intermediate_size=1408, num_hidden_layers=13,
             num_attention_heads=8, num_key_value_heads=8, max_position_embeddings=128, rms_norm_eps=1e-5, rope_theta=10000.0,
             tie_word_embeddings=False, hidden_act="silu", torch_dtype="float32")


def train(a, folder, out, steps, background, resume):
    path = os.path.join(folder, "job.toml")
    with open(path, "w") as f:
        f.write(f"""schema = 1
[run]
name = "bench"
dir = "{out}"
threads = 1
[model]
config = "{folder}/config.json"
[distributed]
strategy = "fsdp2"
[distributed.mp_policy]
param_dtype = "float32"
output_dtype = "float32"
[step_scheduler]
global_batch_size = 2
local_batch_size = 1
max_steps = {steps}
[dataset]
kind = "mock"
seq_len = {64 if background else 8}
[checkpoint]
every_steps = {12 if background else 1}
keep = 1
async = {str(background).lower()}
resume = "{resume}"
""")
    done = subprocess.run([os.path.join(a.build, "bin/meshwright"), "train", path, "--nproc", "2"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return open(os.path.join(out, "bench/run.log")).read()


def ours(a, folder, out):
    shutil.rmtree(os.path.join(out, "bench"), ignore_errors=True)
    log = train(a, folder, out, 5, False, "none")
    saves = [float(x) for x in re.findall(r"checkpoint \S+  .* in ([\d.]+) s", log)]
    loads = []
    for n in range(3):
        log = train(a, folder, out, 6 + n, False, "auto")
        loads.append(float(re.findall(r"read in ([\d.]+) s", log)[-1]))
    size = sum(os.path.getsize(os.path.join(d, f)) for d, _, fs in os.walk(os.path.join(out, "bench/checkpoints/step_00000008")) for f in fs)
    shutil.rmtree(os.path.join(out, "bench"), ignore_errors=True)
    log = train(a, folder, out, 71, True, "none")
    # Of the saves after steps 24 to 60: the first one also makes room for the copy, the one at the end of the run is waited for in full.
    pauses = [float(ms) / 1000 for step, ms in re.findall(r"step (\d+)/\d+  checkpoint .* training paused (\d+) ms", log) if 12 < int(step) < 71]
    rows = [json.loads(line) for line in open(os.path.join(out, "bench/metrics.jsonl"))]
    usual = statistics.median(row["step_ms"] for row in rows)
    slower = sum(row["step_ms"] - usual for row in rows if 24 <= row["step"] < 71) / 1000 / 4
    shutil.rmtree(os.path.join(out, "bench"), ignore_errors=True)
    return saves, pauses, slower, loads, size


def theirs(a, folder, out, environment):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", os.path.join(ROOT, "tests/reference_pytorch/peer_checkpoint.py"),
               "--config", folder, "--out", out, "--times", "5"]
    for attempt in range(3):
        peer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True)
        try:
            printed, errors = peer.communicate(timeout=90)
            break
        except subprocess.TimeoutExpired:  # its asynchronous save and the barrier after it stand still now and then
            os.killpg(peer.pid, signal.SIGKILL)
            peer.communicate()
            print("PyTorch's side stood still for 90 s and is started again", file=sys.stderr)
            shutil.rmtree(os.path.join(out, "dcp"), ignore_errors=True)
    else:
        sys.exit("PyTorch's side stood still three times")
    if peer.returncode:
        sys.exit(errors)
    found = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
    shutil.rmtree(os.path.join(out, "dcp"), ignore_errors=True)
    return found["save"], found["pause"], found["load"], found["bytes"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default=os.path.join(ROOT, "build"))
    p.add_argument("--deps", default=os.environ.get("MESHWRIGHT_DEPS", os.path.join(ROOT, ".deps")))
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--folder", nargs="*", default=[tempfile.gettempdir(), "/dev/shm"])
    a = p.parse_args()
    python = dict(os.environ, PYTHONPATH=os.path.join(a.deps, "python"), OMP_NUM_THREADS="1")
    median = statistics.median
    print(f"{'folder':12}{'round':>6}{'MB':>6}{'PyTorch':>9}{'save s':>9}{'PyTorch':>9}{'ratio':>7}{'load s':>9}{'PyTorch':>9}{'ratio':>7}{'pause s':>9}{'of a save':>11}{'slower s':>10}{'PyTorch':>9}")
    for where in a.folder:
        ratios = [], [], []
        for n in range(a.rounds):
            with tempfile.TemporaryDirectory(dir=where) as folder:
                json.dump(MODEL, open(os.path.join(folder, "config.json"), "w"))
                s, w, slower, l, size = ours(a, folder, folder)
                ps, pw, pl, peer_size = theirs(a, folder, folder, python)
            for to, value in zip(ratios, (median(ps) / median(s), median(pl) / median(l), median(w) / median(s))):
                to.append(value)
            print(f"{where:12}{n + 1:6}{size / 1e6:6.0f}{peer_size / 1e6:9.0f}{median(s):9.2f}{median(ps):9.2f}{ratios[0][-1]:7.2f}{median(l):9.2f}{median(pl):9.2f}"
                  f"{ratios[1][-1]:7.2f}{median(w):9.3f}{ratios[2][-1]:11.0%}{slower:10.2f}{median(pw):9.2f}", flush=True)
        print(f"{where:12}{'median':>6}{'':33}{median(ratios[0]):7.2f}{'':18}{median(ratios[1]):7.2f}{'':9}{median(ratios[2]):11.0%}", flush=True)


if __name__ == "__main__":
    main()
