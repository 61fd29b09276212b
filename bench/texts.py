#!/usr/bin/env python3
"""How fast text becomes tokens, what memory that takes at several sizes, and whether training waits for what is read.

    bench/texts.py [--build build] [--mb 200 1000 2000] [--kinds txt jsonl] [--no-training]

The texts are the project's own pages over and over, with words exchanged at random, as .txt files of 50 MB or as rows of JSON Lines; the tokenizer is a
byte-level one of 8,000 tokens that is trained on the pages. Preparing is `meshwright dataset stats` with an empty cache: MB a second of wall time and of
processor time, the most memory that lay in the process at once, and of it what is its own (without pages of files that are mapped). Training is a Llama of
16 columns, one rank, so that reading counts: tokens a second, and the part of them that steps waited for data (data_ms of metrics.jsonl), read from the
cache, and with the tokens in memory, made by the run itself (cache = "none").
"""
import argparse, glob, json, os, random, re, shutil, statistics, subprocess, sys, tempfile, time

PAGES = sorted(glob.glob("docs/*.md") + glob.glob("configs/texts/*.txt") + ["README.md", "CHANGELOG.md"])


def write_texts(folder, kind, megabytes):
    chance = random.Random(7)
    pages = [open(page, encoding="utf-8").read() for page in PAGES]
    words = sorted({word for page in pages for word in re.findall(r"[A-Za-z]{4,}", page)})
    parts = [re.split(r"([A-Za-z]{4,})", page) for page in pages]
    os.makedirs(folder)
    left, number = megabytes * 10**6, 0
    while left > 0:
        room = min(left, 50 * 10**6)
        left -= room
        with open(f"{folder}/{number:03}.{kind}", "w", encoding="utf-8") as out:
            while room > 0:
                page = list(chance.choice(parts))
                for _ in range(len(page) // 20):
                    page[chance.randrange(len(page) // 2) * 2 + 1 if len(page) > 1 else 0] = chance.choice(words)
                text = "".join(page)
                text = json.dumps({"text": text}, ensure_ascii=False) + "\n" if kind == "jsonl" else text + "\n\n"
                out.write(text)
                room -= len(text.encode())
        number += 1
    return sum(os.path.getsize(file) for file in glob.glob(f"{folder}/*")) / 1e6


def job(a, work, path, cache, steps=0):
    settings = {
        "model.config": f"{work}/model/config.json", "dist_env.device": "cpu", "dataset.kind": "text", "dataset.path": path,
        "dataset.tokenizer": f"{work}/tokenizer", "dataset.seq_len": 1024, "dataset.text.cache": cache, "run.dir": f"{work}/runs",
        "run.name": f"run{cache == 'none'}", "checkpoint.export": "none", "step_scheduler.max_steps": steps or 1,
        "step_scheduler.global_batch_size": 16, "step_scheduler.local_batch_size": 16, "distributed.strategy": "ddp"}
    open(f"{work}/job.toml", "w").write("schema = 1\n")
    return [f"{work}/job.toml"] + [x for key, value in settings.items() for x in ("--set", f"{key}={value}")]


def run(a, arguments):
    """Wall and processor seconds, peak MiB, peak MiB of its own."""
    begin, own = time.time(), 0
    with open(f"{a.log}", "w") as log:
        child = subprocess.Popen([f"{a.build}/bin/meshwright", *arguments], stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
        while True:
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                break
            try:
                own = max(own, int(re.search(r"RssAnon:\s+(\d+)", open(f"/proc/{child.pid}/status").read()).group(1)))
            except (OSError, AttributeError):
                pass
            time.sleep(0.02)
    if status:
        sys.exit(open(a.log).read())
    return time.time() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, own / 1024


def prepare(a, work, kind, megabytes):
    folder, cache = f"{work}/{kind}", f"{work}/cache"
    size = write_texts(folder, kind, megabytes)
    wall, processor, peak, own = run(a, ["dataset", "stats", *job(a, work, f"{folder}/*.{kind}", cache)])
    said = open(a.log).read()
    tokens = int(re.search(r"documents?, ([\d,]+) tokens?", said).group(1).replace(",", ""))
    print(f"{kind:6} {size:7.0f} MB {tokens / 1e6:8.1f} M tokens {wall:8.1f} s {size / wall:6.1f} MB/s {size / processor:6.1f} MB/s of a core "
          f"{peak:7.0f} MiB peak {own:6.0f} MiB own", flush=True)
    return folder, cache


def train(a, work, path, cache, what):
    run(a, ["train", *job(a, work, path, cache, steps=24), "--nproc", "1"])
    rows = [json.loads(line) for line in open(f"{work}/runs/run{cache == 'none'}/metrics.jsonl")]
    rows = [row for row in rows if "loss" in row][4:]
    step, waited = sum(row["step_ms"] for row in rows), sum(row["data_ms"] for row in rows)
    print(f"train, {what}: {len(rows) * 16 * 1024 * 1000 / step:,.0f} tokens/s, waits for data {waited / step:.2%} of the time, "
          f"most in a step {max(row['data_ms'] for row in rows):.2f} ms", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--mb", type=int, nargs="+", default=[200, 1000, 2000])
    parser.add_argument("--kinds", nargs="+", default=["txt", "jsonl"])
    parser.add_argument("--no-training", action="store_true")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        a.log = f"{work}/log"
        os.makedirs(f"{work}/model"), os.makedirs(f"{work}/tokenizer")
        subprocess.run([f"{a.build}/bin/meshwright", "tokenizer", "train", *PAGES, "--vocab-size", "8000", "--out", f"{work}/tokenizer"],
                       check=True, stdout=subprocess.DEVNULL)
        shape = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
                 "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 8000, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5,
                 "tie_word_embeddings": True}
        json.dump(shape, open(f"{work}/model/config.json", "w"))
        for kind in a.kinds:
            for megabytes in a.mb:
                folder, cache = prepare(a, work, kind, megabytes)
                if not a.no_training and megabytes == a.mb[0]:
                    train(a, work, f"{folder}/*.{kind}", cache, "from the cache")
                    train(a, work, f"{folder}/*.{kind}", "none", "made by the run")
                shutil.rmtree(folder), shutil.rmtree(cache)


if __name__ == "__main__":
    main()
