"""Write what the real models are made of: outline.golden.json beside each config.json given.

    python dump_outline.py tests/data/models/*/config.json
builds each model on the meta device with transformers and records its class, parameters (name, shape), modules (name, class) and its own
tensor-parallel plan. The C++ outlines must equal these.
"""
import json, os, sys

import torch
import transformers


def outline(path):
    config = transformers.AutoConfig.from_pretrained(os.path.dirname(path))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    return {"class": type(model).__name__,
            "parameters": [[name, list(p.shape)] for name, p in model.named_parameters()],
            "modules": [[name, type(m).__name__] for name, m in model.named_modules()],
            "tp_plan": dict(sorted((model._tp_plan or {}).items()))}


def text(path):
    return json.dumps(outline(path), indent=0) + "\n"


if __name__ == "__main__":
    for path in sys.argv[1:]:
        with open(os.path.join(os.path.dirname(path), "outline.golden.json"), "w") as f:
            f.write(text(path))
