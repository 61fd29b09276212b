#!/usr/bin/env python3
"""Judges `meshwright config migrate` by recipes of other programs, without a line of its code.

judge.py MESHWRIGHT FOLDER...

Reads every .toml (torchtitan) and .yaml (Automodel, axolotl, TRL) below the folders, migrates it, has the result
resolved by `config show`, looks what `validate` says, and compares values with those that the recipe and the other program's own
defaults come to; schedules are computed step by step in both programs' ways. A value that is another
one is wrong, unless the migrated file says so beside it (guessed, left, still to be said).
"""
import collections
import json
import math
import os
import subprocess
import sys
import tempfile
import tomllib

import yaml


def number(x):
    try:
        return float(x)
    except (TypeError, ValueError):
        return None


def same(a, b):
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    if isinstance(a, bool) or isinstance(b, bool):
        return a == b
    x, y = number(a), number(b)
    if x is not None and y is not None:
        return math.isclose(x, y, rel_tol=1e-9, abs_tol=1e-15)
    return a == b


def get(doc, path, default=None):
    for part in path.split('.'):
        if not isinstance(doc, dict) or part not in doc:
            return default
        doc = doc[part]
    return default if doc is None or doc == 'none' else doc


def dtype(name):
    short = {'bf16': 'bfloat16', 'fp32': 'float32', 'fp16': 'float16', 'half': 'float16', 'float': 'float32'}
    name = str(name).removeprefix('torch.').lower()
    return short.get(name, name)


def our_rate(s, lr, style, warm, low, steps):
    if s < warm:
        return lr * (s + 1) / warm
    begin, last = warm, steps - 1
    if style == 'wsd':
        begin = max(begin, steps - max(steps // 10, 1) - 1)
    if style == 'constant' or s <= begin or last <= begin:
        return low if style != 'constant' and s >= last and last > begin else lr
    progress = min(1.0, (s - begin) / (last - begin))
    share = 0.5 * (1 + math.cos(math.pi * progress)) if style == 'cosine' else 1 - progress
    return low + (lr - low) * share


def apart(theirs, ours, steps, lr):
    """Mean distance of two schedules in parts of the rate."""
    some = range(0, steps, max(1, steps // 2000))
    return sum(abs(theirs(s) - ours(s)) for s in some) / len(some) / lr if lr else 0


class Judge:
    def __init__(self, out, config):
        self.out, self.config, self.wrong, self.told = out, config, [], 0
        self.lines = [(l['key'] + ' ' + l['text']) for part in ('guessed', 'left', 'missing') for l in out[part]]

    def ours(self, key):
        table, _, name = key.rpartition('.')
        value = self.config.get(table, {}).get(name, {'value': None})['value']
        return None if value == 'none' else value

    def says(self, *keys):
        return any(key in line for key in keys for line in self.lines)

    def want(self, key, *values, theirs=()):
        mine, values = self.ours(key), [None if value == 'none' else value for value in values]
        if any(same(mine, value) for value in values):
            return
        if self.says(key, *theirs):
            self.told += 1
        else:
            self.wrong.append(f'{key} = {mine}, wanted {" or ".join(map(str, values))}')

    def schedule(self, theirs, lr, steps):
        mine = lambda s: our_rate(s, self.ours('optimizer.lr'), self.ours('lr_scheduler.lr_decay_style'),
                                  self.ours('lr_scheduler.lr_warmup_steps'), self.ours('lr_scheduler.min_lr'), steps)
        distance = apart(theirs, mine, steps, lr)
        # Half a percent, or half a step's worth of a decay: torchtitan has a step more in its decays.
        if distance < max(0.005, 0.55 / max(1, steps - self.ours('lr_scheduler.lr_warmup_steps'))):
            return
        if self.says('lr_scheduler.', 'lr_decay_style'):
            self.told += 1
        else:
            self.wrong.append(f'schedule is {distance:.1%} apart')

    def told_of(self, key):
        """Whether a key of theirs is carried, guessed or left: none is passed over in silence."""
        return any(l['key'] == key or l['key'].startswith(key + '.') for part in ('carried', 'guessed', 'left', 'missing')
                   for l in self.out[part])

    def mix(self, key, theirs, names):
        """Every data set of a list is there, in its order, with how often or how much of it is read."""
        mine = self.config.get(key) or []
        mine = [{k: v['value'] for k, v in one.items()} for one in mine]
        if len(mine) < len(theirs):
            self.wrong.append(f'{key} has {len(mine)} sources of {len(theirs)}')
            return
        if len(mine) != len(theirs):
            return  # a source of several files is several
        for (one, share, much), here in zip(theirs, mine):
            path = next((one[n] for n in names if one.get(n)), None)
            name = str(path).rstrip('/').split('/')[-1].split('.')[0]
            if name and name.replace('.', '_') not in str(here['path']):
                self.wrong.append(f'{key}: {here["path"]} in place of {path}')
            if share and not same(here.get(share), much):
                self.wrong.append(f'{key}: {share} = {here.get(share)}, wanted {much}')

    def size(self, key, value):
        self.want(key, None if value is None or value < 1 else value, *([] if (value or 1) > 1 else [1, None]))


def automodel(doc, j):
    # Older recipes, and those of diffusion, have these tables beside distributed or in its place.
    for table in ('fsdp', 'parallelizer'):
        if isinstance(doc.get(table), dict):
            doc['distributed'] = {**doc[table], **(doc.get('distributed') or {})}
    if isinstance(doc.get('autopipeline'), dict):
        doc['distributed'] = {'pipeline': doc['autopipeline'], **(doc.get('distributed') or {})}
    opt = doc.get('optimizer') if isinstance(doc.get('optimizer'), dict) else {}
    kind = str(opt.get('_target_', '')).replace(':', '.').split('.')[-1]
    if kind:
        defaults = {'AdamW': 0.01, 'FlashAdamW': 0.01, 'AdamWConfig': 0.01, 'AdamConfig': 0.01}
        muon = kind in ('Muon', 'NorMuon', 'Dion', 'Dion2')
        lr = number(get(opt, 'lr', 5e-4 if muon else 1e-4 if kind.endswith('Config') else 1e-3))
        j.want('optimizer.weight_decay', number(get(opt, 'weight_decay', defaults.get(kind, 0))))
        j.want('optimizer.betas', [number(b) for b in get(opt, 'betas', [0.9, 0.95 if muon else 0.999])])
        j.want('optimizer.eps', number(get(opt, 'eps', 1e-8)))
        if kind not in ('AdamW', 'FlashAdamW', 'FusedAdam'):
            j.want('optimizer.name', 'sgd' if kind == 'SGD' else None, theirs=['optimizer._target_'])
    else:
        lr = number(get(opt, 'lr', j.ours('optimizer.lr')))
    sched = doc.get('lr_scheduler') if isinstance(doc.get('lr_scheduler'), dict) else None
    peak = number(get(sched or {}, 'max_lr', lr))
    j.want('optimizer.lr', peak)
    steps, epochs = get(doc, 'step_scheduler.max_steps'), get(doc, 'step_scheduler.num_epochs')
    mock = 'mock' in str(get(doc, 'dataset._target_', '')).lower()
    if 'step_scheduler' in doc:
        if steps is not None:
            j.want('step_scheduler.max_steps', steps)
            if not mock and not (epochs is None and 'num_epochs' in doc['step_scheduler']):
                j.want('step_scheduler.epochs', epochs or 10, theirs=['step_scheduler.max_steps', 'num_epochs'])
        elif epochs is not None or not mock:
            j.want('step_scheduler.epochs', epochs or 10)
        j.want('step_scheduler.global_batch_size', get(doc, 'step_scheduler.global_batch_size', 32))
        j.want('step_scheduler.local_batch_size', get(doc, 'step_scheduler.local_batch_size',
                                                       get(doc, 'dataloader.batch_size', 1)))
    n = steps if isinstance(steps, int) else 1000
    if sched and 'recipe_args' not in doc:
        warm = get(sched, 'lr_warmup_steps')
        warm = min(1000, n // 10) if warm is None else warm
        first, low = number(get(sched, 'init_lr', peak * .1)), number(get(sched, 'min_lr', peak * .01))
        ends, style = get(sched, 'lr_decay_steps', n), get(sched, 'lr_decay_style', 'cosine')

        def rate(s):
            if warm > 0 and s <= warm:
                return first + (peak - first) * s / warm
            if style == 'constant':
                return peak
            if s > ends:
                return low
            part = (s - warm) / max(1, ends - warm)
            return low + (peak - low) * {'linear': 1 - part, 'cosine': .5 * (math.cos(math.pi * part) + 1)}.get(style, -9)
        j.schedule(rate, peak, n)
    elif 'recipe_args' not in doc and kind and 'warmup_ratio' not in opt:
        j.schedule(lambda s: peak, peak, n)
    j.want('optimizer.max_grad_norm', number(get(doc, 'clip_grad_norm.max_norm', get(
        doc, 'recipe_args.max_grad_norm', get(doc, 'max_grad_norm', 1.0)))))
    target = str(get(doc, 'model._target_', ''))
    stored = get(doc, 'model.torch_dtype', get(doc, 'model.dtype'))
    if stored and stored != 'auto':
        j.want('model.torch_dtype', dtype(stored), stored)
    elif target.endswith('from_config') and 'NeMoAuto' in target:
        j.want('model.torch_dtype', 'bfloat16')
    elif target.endswith('from_pretrained'):  # what the folder says: no word of ours is sure
        j.want('model.torch_dtype', 'auto') if 'NeMoAuto' in target else None
    for name, default in (('param_dtype', 'bfloat16'), ('reduce_dtype', 'float32'), ('output_dtype', 'bfloat16')):
        if get(doc, 'distributed.strategy', 'fsdp2') == 'fsdp2':
            # Not set, ours has the dtype that units compute in.
            if name == 'output_dtype' and j.ours('distributed.mp_policy.' + name) is None:
                j.want('distributed.mp_policy.param_dtype', dtype(get(doc, 'distributed.mp_policy.' + name, default)))
                continue
            j.want('distributed.mp_policy.' + name, dtype(get(doc, 'distributed.mp_policy.' + name, default)))
    for size in ('dp_size', 'tp_size', 'cp_size', 'pp_size', 'ep_size', 'dp_replicate_size'):
        j.size('distributed.' + size, number(get(doc, 'distributed.' + size)))
    tp, ep = get(doc, 'distributed.tp_size', 1), get(doc, 'distributed.ep_size', 1)
    if isinstance(tp, int) and tp > 1:
        j.want('distributed.sequence_parallel', bool(get(doc, 'distributed.sequence_parallel', False)
                                                     or get(doc, 'distributed.enable_async_tensor_parallel', False)),
               *([False] if isinstance(ep, int) and ep > 1 else []))
    again = get(doc, 'distributed.activation_checkpointing', False)
    if isinstance(doc.get('distributed'), dict):
        j.want('distributed.activation_checkpointing', *({True: ['full', True], False: ['none', False]}.get(again, [again])))
    if get(doc, 'distributed.pp_size', 1) > 1 and get(doc, 'distributed.pipeline'):
        j.want('distributed.pipeline.pp_schedule', get(doc, 'distributed.pipeline.pp_schedule', '1f1b'))
        j.want('distributed.pipeline.pp_microbatch_size', get(doc, 'distributed.pipeline.pp_microbatch_size', 1))
    peft = doc.get('peft') if isinstance(doc.get('peft'), dict) else None
    j.want('lora.r', get(peft, 'dim', 8) if peft else 0)
    if peft:
        j.want('lora.alpha', get(peft, 'alpha', 32))
        j.want('lora.dropout', get(peft, 'dropout', 0))
        targets = get(peft, 'target_modules', [])
        targets = [targets] if isinstance(targets, str) else targets
        if targets:
            j.want('lora.target_modules', [t.lstrip('*').lstrip('.') for t in targets], targets)
        without = get(peft, 'exclude_modules', [])
        j.want('lora.exclude_modules', [w.removeprefix('*.') for w in without], theirs=['peft.exclude_modules'])
    data = str(get(doc, 'dataset._target_', '')).split('.')[-1].lower()
    pack = get(doc, 'packed_sequence.packed_sequence_size', 0)
    if data in ('chatdataset', 'columnmappedtextinstructiondataset'):
        j.want('dataset.plugin', 'jsonl')
        if pack == 0:
            j.want('dataset.jsonl.packing', 'none')
        where = get(doc, 'dataset.path_or_dataset_id')
        if isinstance(where, str) and (where.endswith('.jsonl') or where[0] in './'):
            j.want('dataset.path', where)
        else:
            j.want('dataset.path', where, theirs=['dataset.path_or_dataset_id'])
    elif data:
        j.want('dataset.kind', 'megatron' if 'megatron' in data else 'tokens' if 'nanogpt' in data else
               'mock' if mock else None, theirs=['dataset._target_'])
    length = pack or get(doc, 'dataset.seq_length', get(doc, 'dataset.seq_len'))
    if length:
        j.want('dataset.seq_len', length)
    if get(doc, 'dataloader.shuffle') is not None:
        j.want('dataset.shuffle', get(doc, 'dataloader.shuffle'))
    if get(doc, 'dataloader.num_workers') is not None:
        j.want('dataset.workers', get(doc, 'dataloader.num_workers'))
    seed = get(doc, 'seed', get(doc, 'rng.seed'))
    if seed is not None:
        j.want('run.seed', seed)
    saves = get(doc, 'checkpoint.enabled', True)
    every = get(doc, 'step_scheduler.ckpt_every_steps', 100)
    j.want('checkpoint.every_steps', every if saves else 0)
    if saves:
        j.want('checkpoint.export', {True: 'every', False: 'none'}.get(
            get(doc, 'checkpoint.save_consolidated', 'final'), get(doc, 'checkpoint.save_consolidated', 'final')))
        j.want('checkpoint.keep_every', every, theirs=['checkpoint.keep'])
    j.want('dist_env.timeout_minutes', get(doc, 'dist_env.timeout_minutes', 1))
    if get(doc, 'fp8.enabled'):
        j.want('model.float8_linear', True)


def torchtitan(doc, j):
    def old(*paths, default=None):
        for path in paths:
            if (found := get(doc, path)) is not None:
                return found
        return default
    lr = old('optimizer.lr', default=8e-4)
    j.want('optimizer.lr', lr)
    if old('optimizer.name', default='AdamW') != 'AdamW':
        j.want('optimizer.name', None, theirs=['optimizer.name'])
    j.want('optimizer.betas', [old('optimizer.beta1', default=.9), old('optimizer.beta2', default=.95)])
    j.want('optimizer.eps', old('optimizer.eps', default=1e-8))
    j.want('optimizer.weight_decay', old('optimizer.weight_decay', default=.1))
    j.want('optimizer.max_grad_norm', old('training.max_norm', default=1.0))
    steps = old('training.steps', default=10000)
    j.want('step_scheduler.max_steps', steps)
    warm = old('lr_scheduler.warmup_steps', 'training.warmup_steps', default=200)
    if old('training.warmup_pct') is not None:
        warm = round(old('training.warmup_pct') * steps)
    warm = min(warm, steps)
    ratio = old('lr_scheduler.decay_ratio')
    decay = steps - warm if ratio is None else min(round(steps * ratio), steps - warm)
    stable = steps + 1 - warm - decay
    low = old('lr_scheduler.min_lr_factor', 'lr_scheduler.lr_min', default=0.0)
    shape = old('lr_scheduler.decay_type', default='linear')

    def rate(s):
        if s < warm:
            return lr * (s + 1) / warm
        if s < warm + stable:
            return lr
        part = (s + 1 - warm - stable) / decay
        part = {'linear': 1 - part, 'sqrt': 1 - math.sqrt(part), 'cosine': .5 * (1 + math.cos(math.pi * part))}[shape]
        return lr * (low + (1 - low) * part)
    j.schedule(rate, lr, steps)
    local = old('training.local_batch_size', 'training.batch_size', default=8)
    j.want('step_scheduler.local_batch_size', local)
    j.want('step_scheduler.global_batch_size', old('training.global_batch_size', default=-1))
    j.want('dataset.seq_len', old('training.seq_len', default=2048))
    tp = old('parallelism.tensor_parallel_degree', 'training.tensor_parallel_degree',
             'training.sequence_parallel_degree', default=1)
    ep = old('parallelism.expert_parallel_degree', default=1)
    j.size('distributed.tp_size', tp)
    j.size('distributed.ep_size', ep)
    j.size('distributed.pp_size', old('parallelism.pipeline_parallel_degree', 'training.pipeline_parallel_degree',
                                      'experimental.pipeline_parallel_degree'))
    j.size('distributed.cp_size', old('parallelism.context_parallel_degree', 'experimental.context_parallel_degree'))
    repl = old('parallelism.data_parallel_replicate_degree', 'training.data_parallel_replicate_degree', default=1)
    shard = old('parallelism.data_parallel_shard_degree', 'training.data_parallel_shard_degree',
                'training.data_parallel_degree', default=-1)
    j.size('distributed.dp_replicate_size', repl)
    j.size('distributed.dp_size', repl * shard if shard > 0 else None)
    if tp > 1:
        j.want('distributed.sequence_parallel', ep == 1)
        j.want('distributed.enable_async_tensor_parallel', bool(old(
            'parallelism.enable_async_tensor_parallel', 'experimental.enable_async_tensor_parallel', default=False)))
    mode = old('activation_checkpoint.mode', default='selective')
    j.want('distributed.activation_checkpointing', mode if mode != 'selective' else None)
    folder = old('checkpoint.folder', 'training.checkpoint_folder')
    raw = doc.get('checkpoint', {}).get('folder', doc.get('training', {}).get('checkpoint_folder'))
    saves = old('checkpoint.enable', 'checkpoint.enable_checkpoint', default=raw not in (None, ''))
    j.want('checkpoint.every_steps', old('checkpoint.interval', 'training.checkpoint_interval', default=500)
           if saves and folder != '' else 0, theirs=['checkpoint.every_steps'])
    j.want('model.torch_dtype', dtype(old('training.dtype', default='float32')))
    j.want('distributed.mp_policy.param_dtype', dtype(old('training.mixed_precision_param', default='bfloat16')))
    j.want('distributed.mp_policy.reduce_dtype', dtype(old('training.mixed_precision_reduce', default='float32')))
    if old('metrics.enable_tensorboard'):
        j.want('report.tensorboard', True)
    if old('float8.enable_float8_linear', 'training.enable_fp8_linear', 'training.enable_float8_linear') or \
            'float8' in str(old('model.converters', default='')):
        j.want('model.float8_linear', True)
    if old('training.seed') is not None:
        j.want('run.seed', old('training.seed'))


def trainer(doc, j, program, names, defaults):
    """What TRL and axolotl have of Hugging Face's Trainer: names of keys, and the program's defaults."""
    def said(key):
        return get(doc, names.get(key, key), defaults.get(key))
    lr = number(said('lr'))
    if lr is not None:
        j.want('optimizer.lr', lr)
    j.want('optimizer.betas', [number(get(doc, 'adam_beta1', .9)), number(get(doc, 'adam_beta2', .999))])
    j.want('optimizer.eps', number(get(doc, 'adam_epsilon', 1e-8)))
    j.want('optimizer.weight_decay', number(get(doc, 'weight_decay', 0)))
    j.want('optimizer.max_grad_norm', number(get(doc, 'max_grad_norm', 1.0)))
    j.want('run.seed', get(doc, 'seed', 42))
    kind = str(said('optimizer')).lower()
    exact = ('adamw', 'adamw_hf', 'adamw_torch', 'adamw_torch_fused', 'adamw_apex_fused', 'adamw_torch_xla')
    j.want('optimizer.name', 'sgd' if kind == 'sgd' else 'adamw' if kind in exact else None)
    steps, epochs = get(doc, 'max_steps'), said('epochs')
    known = isinstance(steps, int) and steps > 0
    if known:
        j.want('step_scheduler.max_steps', steps)
    else:
        j.want('step_scheduler.epochs', epochs)
    local, several = said('local'), get(doc, 'gradient_accumulation_steps')
    if several is None:
        several = 1 if program == 'TRL' or not get(doc, 'batch_size') else get(doc, 'batch_size') // local
    j.want('step_scheduler.local_batch_size', local)
    j.want('step_scheduler.global_batch_size', local * several)
    if lr:
        n = steps if known else 1000
        warm, ratio = number(get(doc, 'warmup_steps')), number(get(doc, 'warmup_ratio'))
        share = warm if warm is not None and 0 < warm < 1 else None if warm else ratio
        if warm is None and ratio is None and program == 'axolotl':
            warm, share = min(int(.03 * n), 100), None
            if not known:
                j.want('lr_scheduler.lr_warmup_steps', None)
        begin = (int if program == 'axolotl' else math.ceil)(share * n) if share else int(warm or 0)
        kind = str(said('schedule')).lower()
        low = number(get(doc, 'cosine_min_lr_ratio', 0)) * lr if kind == 'cosine' else 0
        low = number(get(doc, 'lr_scheduler_kwargs.min_lr', low))
        rate_low = get(doc, 'lr_scheduler_kwargs.min_lr_rate')
        low = rate_low * lr if rate_low else low

        def rate(s):
            if kind == 'constant':
                return lr
            if s < begin:
                return lr * s / begin
            part = (s - begin) / max(1, n - begin)
            if kind == 'constant_with_warmup':
                return lr
            if kind in ('linear', 'polynomial'):
                return low + (lr - low) * (1 - part)
            return low + (lr - low) * .5 * (1 + math.cos(math.pi * part)) if 'cosine' in kind else -9 * lr
        j.schedule(rate, lr, n)
    wide = get(doc, 'bf16', defaults['bf16'])
    j.want('distributed.mp_policy.param_dtype', 'float16' if True in (get(doc, 'fp16'), get(doc, 'float16')) else
           'bfloat16' if wide in (True, 'auto', 'full') else 'float32')
    again = get(doc, 'gradient_checkpointing', defaults['again'])
    j.want('distributed.activation_checkpointing', *(['full', True] if again else ['none', False]),
           *(['full'] if get(doc, 'fsdp_config.activation_checkpointing') or
             get(doc, 'fsdp_config.fsdp_activation_checkpointing') else []))
    j.want('dist_env.timeout_minutes', get(doc, 'ddp_timeout', 1800) / 60)
    on = get(doc, 'use_peft') is True if program == 'TRL' else get(doc, 'adapter') in ('lora', 'qlora')
    j.want('lora.r', get(doc, 'lora_r', defaults['rank']) if on else 0)
    if on:
        j.want('lora.alpha', get(doc, 'lora_alpha', defaults['alpha']))
        j.want('lora.dropout', get(doc, 'lora_dropout', defaults['dropout']))
        targets = get(doc, 'lora_target_modules')
        if get(doc, 'lora_target_linear') is True or targets in ('all-linear', ['all-linear']):
            j.want('lora.target_modules', 'all-linear')
        elif targets:
            j.want('lora.target_modules', targets if isinstance(targets, list) else [targets])
        else:
            j.want('lora.target_modules', ['q_proj', 'v_proj'])
    if get(doc, 'load_in_4bit') is True or get(doc, 'load_in_8bit') is True:
        j.want('lora.base_dtype', None, theirs=['load_in_'])
    strategy = get(doc, 'save_strategy', 'epoch' if program == 'axolotl' else 'steps')
    every = get(doc, 'save_steps', None if program == 'axolotl' else 500)
    if program == 'axolotl' and every:
        strategy = 'steps'
    j.want('checkpoint.every_steps', 0 if strategy in (False, 'no') else every if strategy == 'steps' and
           isinstance(every, int) else None)
    keep = get(doc, 'save_total_limit', 4 if program == 'axolotl' else None)
    if strategy not in (False, 'no') and keep:
        j.want('checkpoint.keep', keep)
    if 'tensorboard' in str(get(doc, 'report_to', '')) or get(doc, 'use_tensorboard') is True:
        j.want('report.tensorboard', True)
    j.want('dataset.seq_len', said('length'))
    for key, value in doc.items():  # nothing is lost in silence
        if value not in (None, False, '', 'no', 'none', [], {}) and not (isinstance(value, dict) and not any(
                v not in (None, False, '') for v in value.values())) and not j.told_of(key):
            if key not in ('max_steps', 'save_strategy', 'warmup_steps', 'adapter', 'use_peft', 'datasets', 'val_set_size',
                           'eval_strategy', 'report_to', 'chat_template', 'shuffle_merged_datasets', 'fsdp_config',
                           'packing_strategy', 'dataset_train_split', 'dataset_test_split', 'truncation_mode',
                           'lr_scheduler_kwargs', 'excess_length_strategy', 'dataset_text_field', 'loss_type',
                           'shuffle_dataset', 'dp_shard_size', 'adam_beta2', 'sample_packing_sequentially'):
                j.wrong.append(f'{key} is not accounted for')


def axolotl(doc, j):
    trainer(doc, j, 'axolotl',
            {'lr': 'learning_rate', 'schedule': 'lr_scheduler', 'local': 'micro_batch_size', 'epochs': 'num_epochs',
             'length': 'sequence_len'},
            {'optimizer': 'adamw_torch_fused', 'schedule': 'cosine', 'local': 1, 'epochs': 1, 'bf16': 'auto', 'again': False,
             'rank': 8, 'alpha': 8, 'dropout': 0, 'length': 512})
    shards, copies = get(doc, 'dp_shard_size', 1), get(doc, 'dp_replicate_size', 1)
    j.size('distributed.dp_size', shards * copies if shards * copies > 1 else None)
    j.size('distributed.tp_size', get(doc, 'tensor_parallel_size'))
    j.size('distributed.cp_size', get(doc, 'context_parallel_size', get(doc, 'sequence_parallel_degree')))
    j.size('distributed.ep_size', get(doc, 'expert_parallel_size'))
    sets = get(doc, 'datasets') or []
    texts = [isinstance(one, dict) and one.get('type') == 'completion' for one in sets]
    stream = get(doc, 'pretraining_dataset') if not sets else None
    if isinstance(stream, list):
        texts = [isinstance(one, dict) and one.get('type') in (None, 'pretrain', 'completion') for one in stream[:1]]
    # Of texts alone the options of rows say nothing.
    if not texts or not all(texts):
        j.want('dataset.jsonl.packing', *(['bfd', 'sequential'] if get(doc, 'sample_packing') is True else ['none']))
        j.want('dataset.jsonl.truncate', {'truncate': 'right'}.get(get(doc, 'excess_length_strategy'), 'drop'))
        if get(doc, 'train_on_inputs') is True:
            j.want('dataset.jsonl.train_on', 'all')
    if any(texts):
        packs = get(doc, 'sample_packing') is True
        apart = get(doc, 'pretrain_multipack_attn', True) is not False
        j.want('dataset.text.packing', *(['bfd' if packs and apart else 'stream'] if stream else
                                         ['bfd', 'sequential'] if packs else ['none']))
    if len(texts) == 1:
        j.want('dataset.kind', 'text' if texts[0] else j.ours('dataset.kind'))
    j.mix('dataset.mix', [(one, 'epochs', 1) for one in sets] if len(sets) > 1 else [], ('path',))
    tests = get(doc, 'test_datasets') or []
    j.mix('validation_dataset.set', [(one, None, None) for one in tests] if len(tests) > 1 else [], ('path',))
    for key in ('rl', 'reward_model'):
        if get(doc, key):
            j.want('loss', 'another', theirs=[key])


def trl(doc, j):
    preferences = any(key in doc for key in ('beta', 'max_prompt_length', 'max_completion_length')) or \
        get(doc, 'loss_type', 'nll') not in ('nll', 'dft', 'chunked_nll')
    if preferences:
        j.want('loss', 'another', theirs=['recipe'])
    length = 'max_seq_length' if 'max_seq_length' in doc else 'max_length'
    trainer(doc, j, 'TRL',
            {'lr': 'learning_rate', 'schedule': 'lr_scheduler_type', 'optimizer': 'optim',
             'local': 'per_device_train_batch_size', 'epochs': 'num_train_epochs', 'length': length},
            {'lr': None if preferences else 2e-5, 'optimizer': 'adamw_torch', 'schedule': 'linear', 'local': 8, 'epochs': 3,
             'bf16': True, 'again': True, 'rank': 16, 'alpha': 32, 'dropout': .05, 'length': 1024})
    stored = dtype(get(doc, 'dtype', get(doc, 'torch_dtype', 'float32')))
    j.want('model.torch_dtype', stored if stored != 'auto' else None)
    mixture = [one for one in get(doc, 'dataset_mixture.datasets') or [] if one.get('weight', 1) != 0]
    several = get(doc, 'datasets') or []
    if several:
        share = 'weight' if all('fraction' in one for one in several) else 'epochs'
        j.mix('dataset.mix', [(one, share, one.get('fraction', 1)) for one in several] if len(several) > 1 else [], ('path',))
    elif len(mixture) > 1 or any(one.get('weight', 1) != 1 for one in mixture):
        j.mix('dataset.mix', [(one, 'epochs', one.get('weight', 1)) for one in mixture], ('id',))
    pack = get(doc, 'packing') is True
    j.want('dataset.jsonl.packing', 'none' if not pack else 'bfd' if get(doc, 'packing_strategy', 'bfd') == 'bfd' else None)
    j.want('dataset.jsonl.train_on', 'assistant' if get(doc, 'assistant_only_loss') is True else 'all')


# The keys of a program that tell its YAML from the others', by which the judge knows it for itself.
PROGRAMS = {'axolotl': (axolotl, lambda doc: 'base_model' in doc),
            'TRL': (trl, lambda doc: 'model_name_or_path' in doc or 'per_device_train_batch_size' in doc),
            'Automodel': (automodel, lambda doc: any(isinstance(doc.get(t), dict) for t in (
                'step_scheduler', 'model', 'distributed', 'optimizer'))),
            'torchtitan': (torchtitan, lambda doc: any(isinstance(doc.get(t), dict) for t in (
                'training', 'parallelism', 'job', 'lr_scheduler', 'optimizer')))}
OF_OTHERS = ('finetuning_type', 'compute_environment', 'distributed_type', 'zero_optimization')


def main():
    program, total, causes = sys.argv[1], collections.Counter(), collections.Counter()
    work = tempfile.mkdtemp()
    files = sorted(os.path.join(d, f) for top in sys.argv[2:] for d, _, fs in os.walk(top) if '/.' not in d for f in fs
                   if f.endswith(('.toml', '.yaml', '.yml')))
    for path in files:
        titan = path.endswith('.toml')
        try:
            with open(path, 'rb') as f:
                doc = tomllib.load(f) if titan else yaml.safe_load(f)
        except (yaml.YAMLError, tomllib.TOMLDecodeError):
            continue
        if not isinstance(doc, dict) or any(key in doc for key in OF_OTHERS) or '_component_' in str(doc):
            continue
        name = 'torchtitan' if titan else next((n for n in ('axolotl', 'TRL', 'Automodel') if PROGRAMS[n][1](doc)), None)
        if name is None or not PROGRAMS[name][1](doc):
            continue
        ran = subprocess.run([program, 'config', 'migrate', path, '--json'], capture_output=True, text=True, cwd=work)
        total[name, 'files'] += 1
        if ran.returncode != 0:
            total[name, 'refused'] += 1
            print(f'{path}: {ran.stdout[:300]}')
            continue
        out = json.loads(ran.stdout)
        with open(os.path.join(work, 'job.toml'), 'w') as f:
            f.write(out['toml'])
        shown = subprocess.run([program, 'config', 'show', 'job.toml', '--json'], capture_output=True, text=True, cwd=work)
        for part in ('carried', 'guessed', 'left'):
            total[name, part] += len(out[part])
        if shown.returncode != 0:
            total[name, 'wrong'] += 1
            print(f'{path}: the result is refused: {shown.stdout[:400]}')
            continue
        j = Judge(out, json.loads(shown.stdout))
        if out['program'] != name:
            j.wrong.append(f'taken for one of {out["program"]}')
        # What has no counterpart has no value here: only a word beside it is right.
        PROGRAMS[name][0](doc, j)
        judged = subprocess.run([program, 'validate', 'job.toml', '--json'], capture_output=True, text=True, cwd=work)
        if judged.returncode != 0:
            refusals = [e['code'] for e in json.loads(judged.stdout).get('errors', [])] or [judged.stdout[:80]]
            total[name, 'validate: ' + ' '.join(sorted(set(map(str, refusals))))] += 1
        total[name, 'wrong'] += len(j.wrong)
        total[name, 'told'] += j.told
        for wrong in j.wrong:
            causes[wrong] += 1
            print(f'{path}: {wrong}')
    print()
    for name in PROGRAMS:
        print(name, ', '.join(f'{key} {total[name, key]}' for key in ('files', 'refused', 'carried', 'guessed', 'left', 'told', 'wrong')))
        for (of, what), count in sorted(total.items()):
            if of == name and what.startswith('validate'):
                print(f'    {what}: {count}')
    for wrong, count in causes.most_common(25):
        print(f'{count:5} {wrong}')


main()
