"""What transformers writes greedily from the tiny models of tests/data/nets: tests/data/generate/greedy.json. make_greedy.py [--check]"""
import argparse, json, os, sys

import torch
from transformers import AutoModelForCausalLM

here = os.path.dirname(os.path.abspath(__file__))
root = os.path.dirname(os.path.dirname(here))
nets = os.path.join(root, "tests", "data", "nets")
target = os.path.join(root, "tests", "data", "generate", "greedy.json")
PROMPT, COUNT = [1, 2, 3, 5, 8, 13], 24


def continued(folder):
    model = AutoModelForCausalLM.from_pretrained(os.path.join(nets, folder), dtype=torch.float32, attn_implementation="eager").eval()
    ids = model.generate(torch.tensor([PROMPT]), max_new_tokens=COUNT, do_sample=False, eos_token_id=None, pad_token_id=0, use_cache=False)
    return ids[0, len(PROMPT):].tolist()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--check", action="store_true")
    a = p.parse_args()
    made = {"prompt": PROMPT, "models": {name: continued(name) for name in sorted(os.listdir(nets))}}
    text = json.dumps(made, indent=1) + "\n"
    if not a.check:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "w") as f:
            f.write(text)
        return
    with open(target) as f:
        same = f.read() == text
    print(f"greedy: {len(made['models'])} models, {'as committed' if same else 'DIFFER from what is committed'}")
    sys.exit(not same)


if __name__ == "__main__":
    main()
