"""Write what the real models are made of: outline.golden.json beside each config.json given.

    python dump_outline.py tests/data/models/*/config.json
builds each model on the meta device with transformers and records its class, parameters (name, shape), modules (name, class) and its own
tensor-parallel plan. The C++ outlines must equal these. Weights of experts are written as the engine holds them: under its names,
input-major, without what transformers plans for them (they are divided by ep_size) and without their activation module.
"""
import json, os, sys

import torch
import transformers


EXPERTS = {"gate_up_proj": "gate_and_up_projs", "down_proj": "down_projs"}


def parameter(name, shape):
    module, _, last = name.rpartition(".")
    return [f"{module}.{EXPERTS[last]}", [shape[0], shape[2], shape[1]]] if module.endswith(".experts") else [name, shape]


def outline(path):
    config = transformers.AutoConfig.from_pretrained(os.path.dirname(path))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    return {"class": type(model).__name__,
            "parameters": [parameter(name, list(p.shape)) for name, p in model.named_parameters()],
            "modules": [[name, type(m).__name__] for name, m in model.named_modules() if not name.endswith(".experts.act_fn")],
            "tp_plan": {k: v for k, v in sorted((model._tp_plan or {}).items()) if ".experts" not in k}}


def text(path):
    return json.dumps(outline(path), indent=0) + "\n"


if __name__ == "__main__":
    for path in sys.argv[1:]:
        with open(os.path.join(os.path.dirname(path), "outline.golden.json"), "w") as f:
            f.write(text(path))
