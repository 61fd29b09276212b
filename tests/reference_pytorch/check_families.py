"""Folders of four families beside transformers: check_families.py [--build build]

A Gemma, a Mistral, a Phi-3 and a Qwen folder each, with random weights, a tokenizer of tests/data of the family's kind, and its chat template. A chat has
the token ids of apply_chat_template; and after three steps of instruction tuning on such chats, what the exported folder writes greedily behind a text,
in ids and as text, is what transformers writes with it.
"""
import argparse, json, os, subprocess, tempfile

import torch
from tokenizers import AddedToken
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

here = os.path.dirname(os.path.abspath(__file__))
root = os.path.dirname(os.path.dirname(here))

# The configuration, the tokenizer, and the template of chat-golden.json.
FAMILIES = {"gemma": ("gemma3-tiny", "gemma", "own-gemma-style"), "mistral": ("mixtral-tiny", "mistral", "mistral-v0.3"),
            "phi3": ("phi3-tiny", "llama2", "phi3"), "qwen": ("llama-tiny", "qwen2", "qwen3")}
CHATS = [[("user", "What is in the box?"), ("assistant", "A hat, 3 keys and a naïve letter.")],
         [("user", "Wie heißt du?"), ("assistant", "Ich heiße Ørjan 😀."), ("user", "And in 日本語?"), ("assistant", "オルヤン\n\n  (two spaces)  ")],
         [("user", "  tabs\tand   runs of spaces "), ("assistant", "x = [1, 2]\n    return x")]]
PROMPT = "Once upon a time, über 12 Ørsted 😀"
CONFIG = """schema = 1
[run]
name = "family"
dir = "{folder}/runs"
[model]
pretrained = "{folder}/model"
[dist_env]
device = "cpu"
[distributed]
strategy = "ddp"
[distributed.mp_policy]
param_dtype = "float32"
output_dtype = "float32"
[step_scheduler]
global_batch_size = 4
max_steps = 3
[optimizer]
lr = 1e-3
[dataset]
plugin = "jsonl"
path = "{folder}/rows.jsonl"
seq_len = 256
[dataset.jsonl]
packing = "none"
cache = "{folder}/cache"
"""


def ran(build, *arguments):
    done = subprocess.run([os.path.join(build, "bin", "meshwright"), *arguments], capture_output=True, text=True, cwd=root,
                          env={**os.environ, "NO_COLOR": "1", "OMP_NUM_THREADS": "1"})
    if done.returncode != 0:
        raise SystemExit(f"meshwright {' '.join(arguments)} ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def make_model(folder, configuration, tokenizer, template):
    fast = PreTrainedTokenizerFast(tokenizer_file=os.path.join(root, "tests", "data", "tokenizers", tokenizer + ".json"))
    fast.add_special_tokens({"additional_special_tokens": [AddedToken(t, special=True, normalized=False) for t in template["special_tokens"] if t]})
    for key in ("bos_token", "eos_token"):
        if template.get(key):
            setattr(fast, key, template[key])
    fast.chat_template = template["source"]
    fast.save_pretrained(folder)
    config = AutoConfig.from_pretrained(os.path.join(root, "configs", "models", configuration + ".json"))
    config.vocab_size = len(fast)
    config.pad_token_id = None
    config.bos_token_id = config.eos_token_id = fast.eos_token_id
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():  # so that no choice of a token is close
        torch.nn.init.normal_(parameter, 0.0, 0.3) if parameter.dim() > 1 else None
    model.save_pretrained(folder)


def check(build, name, template):
    with tempfile.TemporaryDirectory() as folder:
        make_model(os.path.join(folder, "model"), *FAMILIES[name][:2], template)
        with open(os.path.join(folder, "rows.jsonl"), "w", encoding="utf-8") as f:
            for chat in CHATS:
                f.write(json.dumps({"messages": [{"role": role, "content": content} for role, content in chat]}, ensure_ascii=False) + "\n")
        job = os.path.join(folder, "job.toml")
        with open(job, "w") as f:
            f.write(CONFIG.format(folder=folder))
        reference = AutoTokenizer.from_pretrained(os.path.join(folder, "model"))
        for row, chat in enumerate(CHATS):
            wanted = reference.apply_chat_template([{"role": r, "content": c} for r, c in chat], tokenize=True, return_dict=True)["input_ids"]
            got = [token["id"] for token in json.loads(ran(build, "dataset", "show", job, "--row", str(row), "--json"))["tokens"]]
            if got != wanted:
                raise SystemExit(f"{name}: row {row} has the ids {got}, and {wanted} with transformers")
        ran(build, "train", job)
        exported = os.path.join(folder, "exported")
        ran(build, "checkpoint", "export", os.path.join(folder, "runs", "family"), "--out", exported)
        told = json.loads(ran(build, "generate", exported, "--prompt", PROMPT, "--temperature", "0", "--max-new", "16", "--stop", "none", "--json"))
        tuned, its = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32).eval(), AutoTokenizer.from_pretrained(exported)
        ids = its(PROMPT, return_tensors="pt")["input_ids"]
        wanted = tuned.generate(ids, max_new_tokens=16, do_sample=False, eos_token_id=None, pad_token_id=0)[0, ids.shape[1]:].tolist()
        if told["prompt_ids"] != ids[0].tolist() or told["new_ids"] != wanted:
            raise SystemExit(f"{name}: it reads {told['prompt_ids']} and writes {told['new_ids']}; transformers {ids[0].tolist()} and {wanted}")
        text = its.decode(ids[0].tolist() + wanted).removeprefix(its.bos_token or "").lstrip(" ")
        if told["text"] != text:
            raise SystemExit(f"{name}: the text {told['text']!r}, and {text!r} with transformers")


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--build", default=os.path.join(root, "build"))
    a = a.parse_args()
    with open(os.path.join(root, "sdk", "text", "chat", "tests", "chat-golden.json"), encoding="utf-8") as f:
        templates = json.load(f)["templates"]
    for name, (_, _, template) in FAMILIES.items():
        check(a.build, name, templates[template])
    print(f"{', '.join(FAMILIES)}: chats have the token ids of transformers, and what a tuned model writes is what transformers writes")


main()
