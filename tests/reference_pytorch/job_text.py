"""The jobs of checks and benchmarks: one thread a rank, float32 unless told otherwise, a constant rate of 1e-3."""
import json


def job_text(folder, name, model, distributed, batch, local, steps, dataset, checkpoint, optimizer="", precision="float32"):
    """Each of the last ones: lines of its table; `distributed` may end in tables of its own. Results go to folder/runs/name."""
    return f"""schema = 1
[run]
name = "{name}"
dir = "{folder}/runs"
threads = 1
[model]
{model}
[distributed]
{distributed}
[distributed.mp_policy]
param_dtype = "{precision}"
output_dtype = "{precision}"
[step_scheduler]
global_batch_size = {batch}
local_batch_size = {local}
max_steps = {steps}
[optimizer]
lr = 1e-3
{optimizer}
[lr_scheduler]
lr_decay_style = "constant"
lr_warmup_steps = 0
[dataset]
{dataset}
[checkpoint]
{checkpoint}
"""


def tokens(path, length):
    """A dataset that both sides read in order."""
    return f'kind = "tokens"\ndtype = "uint16"\npath = "{path}"\nseq_len = {length}\nshuffle = false'


def rows(path):
    """Steps in a file of metrics."""
    return [r for r in map(json.loads, open(path)) if "grad_norm" in r]
