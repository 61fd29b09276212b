"""Write tests/data/safetensors/all_types.safetensors with safetensors' own library: make_safetensors.py [--check].

Every element type that Meshwright has, empty tensors, scalars, and names that JSON must escape. --check compares the bytes that the
library makes today, and reads the file again; the exit status is 1 when something differs.
"""
import os, sys

import torch
from safetensors.torch import load, save

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "safetensors", "all_types.safetensors")
TYPES = [torch.bool, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64]


def tensors():
    out = {}
    for i, dtype in enumerate(TYPES):
        name = str(dtype).removeprefix("torch.")
        out["w." + name] = (torch.arange(6 + i) % 5 - 2).to(dtype)
        out["matrix." + name] = (torch.arange(6) % 3).reshape(2, 3).to(dtype)
        out["scalar." + name] = torch.tensor(1, dtype=dtype)
        out["empty." + name] = torch.zeros(0, 4, dtype=dtype)
    for name in ['quote"', "back\\slash", "slash/", "tab\t", "line\nfeed\r", "\b\f", "bell\x07 unit\x1f delete\x7f", "é 漢 \U0001f600", ""]:
        out[name] = torch.tensor([len(name)], dtype=torch.float32)
    return out


def main():
    wanted = save(tensors(), {"format": 'p"t\n'})
    if "--check" not in sys.argv:
        os.makedirs(os.path.dirname(PATH), exist_ok=True)
        with open(PATH, "wb") as f:
            f.write(wanted)
        return 0
    with open(PATH, "rb") as f:
        found = f.read()
    read = load(found)
    same = found == wanted and all(torch.equal(read[name], tensor) for name, tensor in tensors().items())
    print("all_types.safetensors is", "as the library makes it" if same else "not what the library makes")
    return 0 if same else 1


sys.exit(main())
