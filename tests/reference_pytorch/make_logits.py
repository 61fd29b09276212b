"""Write small models of the families that run, with what transformers computes from them: make_logits.py [--check] [CASE ...].

A folder a case under tests/data/nets: config.json, model.safetensors (bfloat16 values, so that every dtype holds them exactly) and
golden.safetensors: ids [2, seq], logits (float32), logits_bf16 (the model in bfloat16), loss (next-token cross-entropy, mean, with the
auxiliary loss of routers where the configuration asks for router logits) and grad_norms (L2, a number a parameter, in the order of
named_parameters). --check computes the goldens anew from the committed weights
and compares; the exit status is 1 when they differ.
"""
import json, os, sys

import torch
import transformers
from safetensors.torch import load_file, save_file

transformers.utils.logging.disable_progress_bar()
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "nets")
BASE = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 40, "max_position_embeddings": 64, "initializer_range": 0.2}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
# name: (family, sequence length, fields on top of BASE)
CASES = {
    "llama": ("Llama", 21, {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}, "rms_norm_eps": 1e-5}),
    "llama_tied_257": ("Llama", 21, {"vocab_size": 257, "tie_word_embeddings": True, "num_key_value_heads": 4}),
    "llama_biases": ("Llama", 21, {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1}),
    "llama_scaled": ("Llama", 40, {"rope_parameters": LLAMA3, "head_dim": 8}),
    "llama_old_linear": ("Llama", 21, {"rope_theta": 300.0, "rope_scaling": {"type": "linear", "factor": 2.5},
                                       "hidden_act": "gelu_pytorch_tanh"}),
    "llama_dynamic": ("Llama", 40, {"max_position_embeddings": 24, "rope_parameters": {"rope_type": "dynamic", "factor": 3.0,
                                                                                        "rope_theta": 10000.0}}),
    "llama_padding": ("Llama", 21, {"pad_token_id": 3, "tie_word_embeddings": True, "hidden_act": "gelu"}),
    "mistral_window": ("Mistral", 40, {"sliding_window": 7}),
    "mistral_full": ("Mistral", 21, {"sliding_window": None, "head_dim": 10, "hidden_size": 26}),
    "qwen2": ("Qwen2", 21, {"rope_theta": 1000000.0}),
    "qwen2_window": ("Qwen2", 21, {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1,
                                   "tie_word_embeddings": True}),
    "qwen3": ("Qwen3", 21, {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3_layer_types": ("Qwen3", 21, {"head_dim": 8, "attention_bias": True, "use_sliding_window": True, "sliding_window": 6,
                                        "layer_types": ["sliding_attention", "full_attention"]}),
    "gemma3": ("Gemma3", 29, {"head_dim": 10, "query_pre_attn_scalar": 7, "sliding_window": 6, "sliding_window_pattern": 2,
                              "num_hidden_layers": 3, "rope_theta": 9000.0, "rope_local_base_freq": 50.0,
                              "rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    "gemma3_layer_types": ("Gemma3", 29, {"head_dim": 8, "sliding_window": 9, "tie_word_embeddings": False, "attention_bias": True,
                                          "layer_types": ["full_attention", "sliding_attention"], "hidden_size": 20, "pad_token_id": 3,
                                          "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 700.0},
                                                              "sliding_attention": {"rope_type": "default", "rope_theta": 30.0}}}),
    "gemma3_capped": ("Gemma3", 21, {"head_dim": 16, "final_logit_softcapping": 3.0, "num_key_value_heads": 1, "pad_token_id": None}),
    "phi3": ("Phi3", 21, {"pad_token_id": None, "rope_theta": 700.0}),
    "phi3_window": ("Phi3", 29, {"pad_token_id": 3, "sliding_window": 6, "num_attention_heads": 6, "intermediate_size": 45,
                                 "num_key_value_heads": 3, "hidden_size": 36, "partial_rotary_factor": 0.7}),
    "phi3_tied": ("Phi3", 21, {"pad_token_id": None, "tie_word_embeddings": True, "head_dim": 8, "num_key_value_heads": 4}),
    "phi3_longrope": ("Phi3", 29, {"pad_token_id": None, "max_position_embeddings": 64, "original_max_position_embeddings": 24,
                                   "num_key_value_heads": 1, "rope_scaling": {
                                       "type": "longrope", "short_factor": [1.0, 1.1, 1.3], "long_factor": [1.5, 4.0, 9.0]}}),
    "llama_yarn": ("Llama", 40, {"head_dim": 16, "rope_parameters": {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0,
                                                                     "original_max_position_embeddings": 16}}),
    "qwen3_yarn": ("Qwen3", 40, {"head_dim": 20, "rope_theta": 10000.0, "rope_scaling": {
        "rope_type": "yarn", "factor": 2.5, "original_max_position_embeddings": 24, "beta_fast": 6.0, "beta_slow": 0.5, "mscale": 1.3,
        "mscale_all_dim": 0.6, "truncate": False}}),
    "phi": ("Phi", 21, {"hidden_size": 32}),
    "phi_normed": ("Phi", 29, {"qk_layernorm": True, "tie_word_embeddings": True, "pad_token_id": 3, "num_key_value_heads": 4,
                               "hidden_size": 40, "partial_rotary_factor": 0.4, "rope_theta": 500.0}),
    "phi_yarn": ("Phi", 40, {"head_dim": 16, "partial_rotary_factor": 0.75, "hidden_act": "gelu", "num_key_value_heads": 1,
                             "rope_parameters": {"rope_type": "yarn", "rope_theta": 3000.0, "factor": 4.0, "attention_factor": 1.2,
                                                 "original_max_position_embeddings": 20}}),
    "mixtral": ("Mixtral", 29, {"num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 20, "pad_token_id": None}),
    "mixtral_top1": ("Mixtral", 21, {"num_local_experts": 3, "num_experts_per_tok": 1, "sliding_window": 7, "head_dim": 8, "hidden_act": "gelu",
                                    "output_router_logits": True, "router_aux_loss_coef": 0.7, "tie_word_embeddings": True}),
    "qwen3_moe": ("Qwen3Moe", 29, {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 12, "norm_topk_prob": True, "head_dim": 8,
                                   "output_router_logits": True, "router_aux_loss_coef": 0.3, "num_hidden_layers": 3}),
    "qwen3_moe_mixed": ("Qwen3Moe", 21, {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "norm_topk_prob": False,
                                         "head_dim": 10, "decoder_sparse_step": 2, "mlp_only_layers": [3], "num_hidden_layers": 4,
                                         "attention_bias": True, "use_sliding_window": True, "sliding_window": 6}),
}
MODEL_TYPES = {"Gemma3": "gemma3_text", "Qwen3Moe": "qwen3_moe"}


def make(name):
    family, seq, fields = CASES[name]
    folder = os.path.join(ROOT, name)
    os.makedirs(folder, exist_ok=True)
    config = {"architectures": [family + "ForCausalLM"], "model_type": MODEL_TYPES.get(family, family.lower()), **BASE, **fields}
    with open(os.path.join(folder, "config.json"), "w") as f:
        f.write(json.dumps(config, indent=1) + "\n")
    torch.manual_seed(sum(name.encode()))
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder))
    for key, p in model.named_parameters():
        if key.endswith("norm.weight"):
            low = -0.5 if family == "Gemma3" else 0.5  # it scales by 1 + weight
            torch.nn.init.uniform_(p, low, low + 1)
        elif key.endswith("bias"):
            torch.nn.init.normal_(p, std=0.2)
    if family in ("Mixtral", "Qwen3Moe"):  # a tensor an expert, as transformers' folders have them; config.json stays as it is above
        model.bfloat16().save_pretrained(folder)
        os.remove(os.path.join(folder, "generation_config.json"))
        with open(os.path.join(folder, "config.json"), "w") as f:
            f.write(json.dumps(config, indent=1) + "\n")
    else:
        save_file({key: p.detach().bfloat16() for key, p in model.named_parameters()}, os.path.join(folder, "model.safetensors"))
    ids = torch.randint(0, config["vocab_size"], (2, seq + 1))
    ids[0, 2] = 3  # the padding row where there is one
    save_file({"ids": ids, **goldens(folder, ids)}, os.path.join(folder, "golden.safetensors"))


def goldens(folder, ids):
    more = {"experts_implementation": "eager"} if "moe" in folder or "mixtral" in folder else {}  # the loop over experts

    def load(dtype):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa", **more)
        return model.train()
    model = load(torch.float32)
    out = model(ids[:, :-1], use_cache=False)
    logits = out.logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    if getattr(model.config, "output_router_logits", False):
        loss = loss + model.config.router_aux_loss_coef * out.aux_loss
    loss.backward()
    norms = torch.stack([p.grad.norm() for p in model.parameters()])
    with torch.no_grad():
        low = load(torch.bfloat16)(ids[:, :-1], use_cache=False).logits
    return {"logits": logits.detach().contiguous(), "loss": loss.detach(), "grad_norms": norms, "logits_bf16": low.contiguous()}


def check(name):
    """The largest differences of the committed goldens from fresh ones, relative to each tensor's largest value."""
    folder = os.path.join(ROOT, name)
    old = load_file(os.path.join(folder, "golden.safetensors"))
    new = goldens(folder, old["ids"])
    return {key: ((old[key].float() - value.float()).abs().max() / value.float().abs().max()).item() for key, value in new.items()}


if __name__ == "__main__":
    names = [a for a in sys.argv[1:] if a != "--check"] or list(CASES)
    wrong = 0
    for name in names:
        if "--check" not in sys.argv[1:]:
            make(name)
            continue
        for key, difference in check(name).items():
            if difference > (2e-2 if key == "logits_bf16" else 1e-5):
                print(f"{name}: {key} differs by {difference:.2g}")
                wrong += 1
    if "--check" in sys.argv[1:]:
        print(f"{wrong} differences; remake with make_logits.py" if wrong else f"{len(names)} models agree with transformers")
    sys.exit(1 if wrong else 0)
