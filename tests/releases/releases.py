#!/usr/bin/env python3
"""What a release wrote is read by today's program: releases.py MESHWRIGHT ARCHIVE [make]

An archive (tests/releases/VERSION.tar.xz) holds the configurations of a release, runs that stopped after two steps, and what the release said:
the losses of the two steps that follow, its keys with their defaults, its error codes with their exit statuses, and the keys of its JSON. A run
goes on with those losses; nothing of the rest may go or change, more may come. `make` writes the archive with the program of the release, once:
one whose name ends in rc is a candidate and may be written anew.
"""
import json, math, os, pathlib, re, shutil, subprocess, sys, tarfile, tempfile

program, archive = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
making = sys.argv[3:] == ["make"]
root = pathlib.Path(__file__).resolve().parents[2]
environment = {k: v for k, v in os.environ.items() if k not in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")}
environment |= {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"}

# Small models; what lies in checkpoints in a way of its own: shards, flat buffers of fused weights, experts, adapters beside a frozen base.
small = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
         "head_dim": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "tie_word_embeddings": True}
models = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "phi3": {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "pad_token_id": 0},
    "mixtral": {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 1},
}
jobs = {
    "sharded": ["model.config=models/llama.json", "distributed.strategy=fsdp2"],
    "flat": ["model.config=models/phi3.json", "distributed.strategy=megatron_fsdp", "optimizer.main_dtype=float32", "model.torch_dtype=bfloat16"],
    "experts": ["model.config=models/mixtral.json", "distributed.strategy=moe_ep", "distributed.ep_size=2", "optimizer.name=sgd"],
    "adapters": ["model.pretrained=base", "distributed.strategy=ddp", "lora.r=2"],
}
steps = {"flat": 5e-3}  # losses of bfloat16 weights are as near as their digits; others are those of float32


def run(*arguments, status=0):
    done = subprocess.run([program, *arguments], env=environment, capture_output=True, text=True)
    if status is not None and done.returncode != status:
        sys.exit(f"FAILED: {' '.join(map(str, arguments))}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def train(name, run_name, last):
    more = [x for s in jobs[name] for x in ("--set", s)]
    run("train", "job.toml", "--nproc", "2", *more, "--set", f"run.name={run_name}", "--set", f"step_scheduler.max_steps={last}")


def losses(run_name):
    return [json.loads(line)["loss"] for line in open(f"runs/{run_name}/metrics.jsonl")]


def keys(value, at=""):
    """The paths of a JSON value with their types; elements of a list are one."""
    out = {(at, type(value).__name__.replace("int", "float"))}
    for key, inner in value.items() if isinstance(value, dict) else (("[]", v) for v in value) if isinstance(value, list) else ():
        out |= keys(inner, f"{at}.{key}")
    return out


def options(schema, at=""):
    """key -> default, of a JSON Schema."""
    out = {}
    for name, inner in schema.get("properties", {}).items():
        inner = inner.get("items", inner) if inner.get("type") == "array" and "properties" in inner.get("items", {}) else inner
        deeper = options(inner, f"{at}{name}.")
        out |= deeper or {at + name: inner.get("default")}
    return out


def said():
    """What the program says about itself, about the configurations here and about the runs here."""
    out = {"options": options(json.loads(run("config", "schema").stdout)),
           "codes": dict(re.findall(r"^\| (E\d+) \| (\d+) \|", run("config", "explain", "--reference").stdout, re.M)),
           "plans": [], "json": {}}
    for file in sorted(pathlib.Path("configs").glob("*.toml")):
        out["plans"] += [[str(file), ranks] for ranks in ("4", "32") if run("plan", file, "--world-size", ranks, status=None).returncode == 0]
    for name, arguments in {
            "plan": ["plan", "configs/hsdp_tp.toml", "--world-size", "64", "--machine", "h100x8", "--json"],
            "plan of a pipeline": ["plan", "configs/pipeline_64.toml", "--world-size", "64", "--json"],
            "search": ["plan", "configs/pipeline_64.toml", "--world-size", "64", "--machine", "h100x8", "--search", "--top", "2", "--json"],
            "error": ["plan", "configs/hsdp_tp.toml", "--world-size", "8", "--set", "distributed.tp_size=3", "--json"],
            "validate": ["validate", "configs/ddp_cpu.toml", "--json"],
            "plugins": ["plugins", "list", "--json"],
            "checkpoint ls": ["checkpoint", "ls", "runs/sharded", "--json"],
            "checkpoint verify": ["checkpoint", "verify", "runs/sharded", "--json"],
    }.items():
        out["json"][name] = sorted(map(list, keys(json.loads(run(*arguments, status=None).stdout))))
    out["json"]["metrics.jsonl"] = sorted(map(list, keys(json.loads(open("runs/sharded/metrics.jsonl").readline()))))
    return out


def make():
    if archive.exists() and not archive.name.endswith("rc.tar.xz"):
        sys.exit(f"{archive} is what a release wrote, and is never written anew")
    shutil.copytree(root / "configs", "configs")
    os.mkdir("models")
    for name, more in models.items():
        pathlib.Path(f"models/{name}.json").write_text(json.dumps(small | more))
    pathlib.Path("job.toml").write_text("""schema = 1
[dist_env]
device = "cpu"
[distributed.mp_policy]
param_dtype = "float32"
output_dtype = "float32"
[step_scheduler]
global_batch_size = 4
local_batch_size = 2
[optimizer]
lr = 1e-2
[dataset]
kind = "mock"
seq_len = 32
""")
    kept = {}
    for name in jobs:
        if name == "adapters":
            run("checkpoint", "export", "runs/sharded", "--out", "base")
        train(name, "whole", 4)
        kept[name] = losses("whole")
        shutil.rmtree("runs/whole")
        train(name, name, 2)
    expected = {"losses": kept, **said()}
    pathlib.Path("expected.json").write_text(json.dumps(expected, indent=0))
    with tarfile.open(archive, "w:xz") as out:
        for path in sorted(pathlib.Path(".").rglob("*")):
            if path.is_file() or path.is_symlink():
                out.add(path, recursive=False, filter=lambda i: (i.__setattr__("mtime", 0), i.__setattr__("uid", 0), i.__setattr__("gid", 0), i)[-1])
    print(f"{archive}: {archive.stat().st_size // 1024} KiB")


def check():
    with tarfile.open(archive) as source:
        source.extractall(".")
    expected, wrong = json.load(open("expected.json")), []
    now = said()
    for key, default in expected["options"].items():
        if key not in now["options"]:
            wrong.append(f"the key {key} is gone: keep it, or make it another name of what takes its place")
        elif now["options"][key] != default:
            wrong.append(f"the default of {key} was {default}, is {now['options'][key]}: old files would train something else")
    for code, status in expected["codes"].items():
        if now["codes"].get(code) != status:
            wrong.append(f"{code} ended with {status}, now with {now['codes'].get(code)}")
    wrong += [f"{file} is no longer planned on {ranks} ranks" for file, ranks in expected["plans"] if [file, ranks] not in now["plans"]]
    for name, paths in expected["json"].items():
        there = {}
        for path, kind in now["json"][name]:
            there.setdefault(path, set()).add(kind)
        for path, kind in paths:
            if path not in there:
                wrong.append(f"JSON of {name}: {path} is gone")
            elif kind not in there[path]:
                wrong.append(f"JSON of {name}: {path} was a {kind}, is a {' or '.join(there[path])}")
    for name in jobs:
        run("checkpoint", "verify", f"runs/{name}")
        train(name, name, 4)
        before, after = expected["losses"][name], losses(name)
        if len(after) != 4 or any(not math.isclose(a, b, rel_tol=steps.get(name, 1e-4)) for a, b in zip(before, after)):
            wrong.append(f"the run {name} went on with the losses {after} where the release had {before}")
    if wrong:
        sys.exit("FAILED: what this release promised (docs/compatibility.md)\n  " + "\n  ".join(wrong))
    print(f"{len(jobs)} runs, {len(expected['plans'])} plans, {len(expected['options'])} keys, {len(expected['codes'])} error codes and the JSON of "
          f"{archive.name.removesuffix('.tar.xz')} are read as they were")


with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    (make if making else check)()
