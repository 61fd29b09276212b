// A table: every key of the reference, and what shows that it works. Long because it is one.
#include "tests/keys/key_rows.h"

namespace meshwright::keys {
namespace {

using enum Shows;
using Names = std::vector<std::string>;

const Names kSharded = {"fsdp2", "moe_ep"}, kOthers = {"ddp", "megatron_fsdp"},
            kNoDdp = {"fsdp2", "moe_ep", "megatron_fsdp"};
const Names kExperts = {"model.config=" MESHWRIGHT_SOURCE_DIR "/configs/models/mixtral-tiny.json"};
const Names kExpertParallel = {kExperts[0], "distributed.ep_size=2"};
const Names kHalf = {"model.torch_dtype=bfloat16"};
const Names kValidates = {"validation_dataset.kind=mock", "validation_dataset.seq_len=8",
                          "validation_dataset.every_steps=2", "validation_dataset.num_batches=1"};
const Names kText = {"dataset.kind=text", "dataset.path=" MESHWRIGHT_SOURCE_DIR "/LICENSE"};
const Names kChatTiny = {"model.config=" MESHWRIGHT_SOURCE_DIR
                         "/configs/models/chat-tiny/config.json"};
const Names kTokens = {
    "dataset.kind=tokens", "dataset.path=" MESHWRIGHT_SOURCE_DIR "/tests/data/parity/train.bin",
    "dataset.dtype=uint16",
    "model.config=" MESHWRIGHT_SOURCE_DIR "/tests/data/parity/llama/config.json"};
// Of its six layers several come and go, so that it shows how many are gathered ahead.
const Names kPrefetches = {
    "model.config=" MESHWRIGHT_SOURCE_DIR "/configs/models/gemma3-small.json",
    "distributed.fsdp2.reshard_after_forward=true", "distributed.fsdp2.enable_fsdp2_prefetch=true"};
const Names kAdapters = {"lora.r=4"};
const Names kSaves = {"checkpoint.every_steps=1"};

Names both(Names a, const Names& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

const std::vector<Row>& rows() {
  static const std::vector<Row> all = {
      Row("schema", "2", refused),
      // [run]
      Row("run.name", "another", trained),
      Row("run.dir", "elsewhere", trained),
      Row("run.seed", "7", trained),
      Row("run.threads", "2", trained),
      Row("run.deterministic", "true", test, {}, {},
          "engine/train/run/tests/options_test.cpp: run.deterministic switches LibTorch to "
          "deterministic algorithms, and nothing else does"),
      Row("run.float32_matmul_precision", "high", test, {}, {},
          "engine/train/step/tests/float32_products_test.cpp: products of float32 are TF32's on "
          "devices where the file says so, and never on CPUs"),
      Row("run.float32_matmul_precision", "high", told, {"dist_env.device=cpu"}),
      Row("run.stop_on_nonfinite", "false", test, {}, {},
          "engine/train/run/tests/megatron_fsdp_options_test.cpp: NaN and infinite gradients are "
          "found after or before the reduction, and their parameter is named on every rank"),
      Row("run.skip_step_above_z", "6", test, {}, {},
          "engine/train/run/tests/left_out_test.cpp: a step on poisoned data is left out on all "
          "ranks of every layout, and its parameters stay"),
      // [model]
      Row("model.config", MESHWRIGHT_SOURCE_DIR "/configs/models/llama-quickstart.json", plan),
      Row("model.pretrained", MESHWRIGHT_SOURCE_DIR "/tests/data/parity/llama", plan,
          {"model.config=none"}),
      Row("model.plugin", "gpt2", test, {}, {},
          "tests/models/models_test.cpp: a plugin's models train alike under every strategy"),
      Row("model.torch_dtype", "bfloat16", plan),
      Row("model.float8_linear", "true", trained),
      // [dist_env]
      Row("dist_env.device", "cuda", test, {}, {},
          "engine/launch/device/tests/device_test.cpp: device and back end follow from what is "
          "asked for and what is there"),
      Row("dist_env.backend", "nccl", test, {}, {},
          "engine/launch/device/tests/device_test.cpp: device and back end follow from what is "
          "asked for and what is there"),
      Row("dist_env.cuda_graphs", "true", trained),
      Row("dist_env.expandable_segments", "true", test, {}, {},
          "engine/launch/device/tests/device_test.cpp: segments of the allocator may grow from "
          "before the device is used, unless the environment says otherwise"),
      Row("dist_env.expandable_segments", "true", told, {"dist_env.device=cpu"}),
      Row("dist_env.expandable_segments", "true", refused,
          {"distributed.megatron_fsdp.nccl_ub=true"}, {"megatron_fsdp"}),
      Row("dist_env.timeout_minutes", "1", test, {}, {},
          "tests/faults/ranks_test.cpp: SIGSTOP of a rank in a step: rank, group and operation are "
          "named after the timeout, exit status 6"),
      Row("dist_env.interface", "nic9", test, {}, {},
          "engine/launch/rendezvous/tests/endpoints_test.cpp: an interface that one rank does not "
          "have is an error on all, which names the rank"),
      Row("dist_env.interface", "nic9", test, {}, {},
          "engine/launch/rendezvous/tests/rendezvous_test.cpp: one rank alone is told that the "
          "interface it was given has no effect"),
      Row("dist_env.connections_per_peer", "2", test, {}, {},
          "engine/launch/rendezvous/tests/rendezvous_test.cpp: however many connections two ranks "
          "on different hosts have, collectives give the same"),
      Row("dist_env.connections_per_peer", "2", test, {}, {},
          "engine/launch/rendezvous/tests/rendezvous_test.cpp: more connections than one are said "
          "to have no effect where no rank is on another host"),
      // [step_scheduler]
      Row("step_scheduler.global_batch_size", "32", plan),
      Row("step_scheduler.local_batch_size", "1", plan),
      Row("step_scheduler.max_steps", "6", trained),
      Row("step_scheduler.epochs", "2", refused),
      Row("step_scheduler.epochs", "2", test, {}, {},
          "tests/train_configs/chats_test.cpp: epochs of chats are as many steps as their packs "
          "fill"),
      // [optimizer]
      Row("optimizer.name", "sgd", plan),
      Row("optimizer.name", "muon", refused),
      Row("optimizer.lr", "1e-2", trained),
      Row("optimizer.betas", "[0.5, 0.6]", trained),
      Row("optimizer.eps", "1e-2", trained),
      Row("optimizer.weight_decay", "0.5", trained),
      Row("optimizer.no_decay", "norms_and_biases", plan),
      Row("optimizer.no_decay", "norms_and_biases", trained, {"optimizer.weight_decay=50"}),
      Row("optimizer.no_decay", "norms_and_biases", told, {"optimizer.weight_decay=0"}),
      // Groups are set as a whole.
      Row("optimizer.group.pattern", R"([{pattern = "*norm*", lr_factor = 0}])", trained),
      Row("optimizer.group.pattern", R"([{pattern = "nothing"}])", told),
      Row("optimizer.group.lr_factor", R"([{pattern = "*", lr_factor = 0.5}])", trained),
      Row("optimizer.group.lr_factor", R"([{pattern = "*.0.*", lr_factor = 0.5}])", plan),
      Row("optimizer.group.weight_decay", R"([{pattern = "*", weight_decay = 9}])", trained),
      Row("optimizer.group.weight_decay", R"([{pattern = "*.0.*", weight_decay = 9}])", plan),
      Row("optimizer.group.frozen", R"([{pattern = "*.0.*", frozen = true}])", trained),
      Row("optimizer.group.frozen", R"([{pattern = "*.0.*", frozen = true}])", plan),
      Row("optimizer.group.frozen", R"([{pattern = "*", frozen = true}])", refused),
      Row("optimizer.momentum", "0.9", plan, {"optimizer.name=sgd"}),
      Row("optimizer.momentum", "0.9", told),
      Row("optimizer.max_grad_norm", "1e-3", trained, {"optimizer.name=sgd"}),
      Row("optimizer.main_dtype", "float32", plan, kHalf),
      Row("optimizer.main_dtype", "float32", told),
      Row("optimizer.loss_scale", "4096", told, {"distributed.mp_policy.param_dtype=float16"}),
      Row("optimizer.loss_scale", "3", refused, {"distributed.mp_policy.param_dtype=float16"}),
      Row("optimizer.loss_scale", "4096", told),
      Row("optimizer.dynamic_loss_scale", "true", told,
          {"distributed.mp_policy.param_dtype=float16"}),
      Row("optimizer.dynamic_loss_scale", "true", told),
      // [lora]
      Row("lora.r", "4", plan),
      Row("lora.r", "4", trained, {}, {"ddp"}),
      Row("lora.r", "4000", refused),
      Row("lora.alpha", "90", trained, kAdapters, {"ddp"}),
      Row("lora.alpha", "90", told),
      Row("lora.target_modules", "q_proj", plan, kAdapters),
      Row("lora.target_modules", "q_prj", refused, kAdapters),
      Row("lora.target_modules", "q_proj", told),
      Row("lora.exclude_modules", "[\"q_proj\"]", plan, kAdapters),
      Row("lora.exclude_modules", "[\"q_proj\"]", told),
      Row("lora.rank_pattern", "{q_proj = 2}", plan, kAdapters),
      Row("lora.rank_pattern", "{q_prj = 2}", refused, kAdapters),
      Row("lora.rank_pattern", "{q_proj = 2}", told),
      Row("lora.alpha_pattern", "{q_proj = 90}", trained, kAdapters, {"ddp"}),
      Row("lora.alpha_pattern", "{q_prj = 90}", refused, kAdapters),
      Row("lora.alpha_pattern", "{q_proj = 90}", told),
      Row("lora.dropout", "0.5", trained, kAdapters, {"ddp"}),
      Row("lora.dropout", "0.5", told),
      Row("lora.rslora", "true", trained, kAdapters, {"ddp"}),
      Row("lora.rslora", "true", told),
      Row("lora.dora", "true", refused, kAdapters),
      Row("lora.dora", "true", refused),
      Row("lora.init", "gaussian", trained, kAdapters, {"ddp"}),
      Row("lora.init", "gaussian", told),
      Row("lora.adapter", "nowhere", refused),
      Row("lora.adapter", "nowhere", told, {"lora.r=0"}),
      Row("lora.adapter", "nowhere", test, {}, {},
          "tests/train_configs/lora_test.cpp: adapters go out to a folder and come back from it"),
      Row("lora.export", "merged", told),
      Row("lora.export", "merged", trained, both(kAdapters, {"checkpoint.export=final"}), {"ddp"}),
      Row("lora.export", "none", trained, both(kAdapters, {"checkpoint.export=final"}), {"ddp"}),
      Row("lora.base_dtype", "float16", plan, kAdapters),
      Row("lora.base_dtype", "nf4", refused, kAdapters),
      Row("lora.base_dtype", "float16", trained, kAdapters, {"ddp"}),
      Row("lora.base_dtype", "float16", told),
      Row("lora.base_sharding", "replicate", plan, kAdapters, {"fsdp2", "megatron_fsdp"}),
      Row("lora.base_sharding", "replicate", told),
      // [lr_scheduler]
      // Halfway down, where the third of four steps is, a cosine and a line meet.
      Row("lr_scheduler.lr_decay_style", "linear", trained, {"step_scheduler.max_steps=6"}),
      Row("lr_scheduler.lr_warmup_steps", "2", trained),
      Row("lr_scheduler.min_lr", "1e-4", trained),
      // [dataset]
      Row("dataset.kind", "text", trained, {kText[1]}),
      Row("dataset.path", MESHWRIGHT_SOURCE_DIR "/README.md", trained, kText),
      Row("dataset.path", "x", told),
      Row("dataset.tokenizer", "bytes", trained, both(kText, kChatTiny)),
      Row("dataset.tokenizer", "bytes", told),
      Row("dataset.dtype", "uint32", trained, kTokens),
      Row("dataset.dtype", "uint16", told),
      Row("dataset.seq_len", "16", plan),
      Row("dataset.packing", "true", trained, {kText[0], kText[1], "dataset.document_end=32"}),
      Row("dataset.packing", "true", refused),
      Row("dataset.document_end", "32", told),
      Row("dataset.plugin", "mine", test, {}, {},
          "tests/faults/data_test.cpp: a plugin's data train, with threads and without to the same "
          "numbers, and tell of it"),
      Row("dataset.workers", "2", test, {}, {},
          "engine/train/run/tests/plugin_data_test.cpp: plugin data: reading ahead hides what a "
          "sample takes behind the step"),
      Row("dataset.shuffle", "false", trained, kText),
      Row("dataset.verify", "whole", test, {}, {},
          "tests/faults/together_test.cpp: a large file is compared at its ends and in places "
          "between, or to the last byte with dataset.verify = whole"),
      // [validation_dataset]
      // Sources are set as a whole.
      Row("dataset.mix.name", R"([{name = "a"}, {name = "b"}])", trained),
      Row("dataset.mix.name", R"([{name = "a"}, {name = "a"}])", refused),
      Row("dataset.mix.weight", R"([{name = "a"}, {name = "b", weight = 9}])", trained),
      Row("dataset.mix.weight", R"([{name = "a", weight = 0}])", refused),
      Row("dataset.mix.epochs", R"([{name = "a", epochs = 2}, {name = "b", epochs = 0.5}])",
          trained),
      Row("dataset.mix.schedule", R"([{name = "a"}, {name = "b", schedule = { 1 = 9 }}])", trained),
      Row("dataset.mix.schedule", R"([{name = "a", schedule = { 1 = 0 }}])", refused),
      Row("dataset.mix.kind",
          R"([{name = "a", kind = "text", path = ")" MESHWRIGHT_SOURCE_DIR R"(/LICENSE"}])",
          trained),
      Row("dataset.mix.path", R"([{name = "a", kind = "text"}])", refused),
      Row("dataset.mix.path",
          R"([{name = "a", kind = "text", path = ")" MESHWRIGHT_SOURCE_DIR R"(/README.md"}])",
          trained),
      Row("dataset.mix.plugin", R"([{name = "a", plugin = "nobody_has_it"}])", refused),
      Row("dataset.mix.tokenizer",
          R"([{name = "a", kind = "text", tokenizer = ")" MESHWRIGHT_SOURCE_DIR
          R"(/configs/models/chat-tiny", path = ")" MESHWRIGHT_SOURCE_DIR R"(/LICENSE"}])",
          trained, kChatTiny),
      Row("dataset.mix.dtype",
          R"([{name = "a", kind = "tokens", dtype = "uint32", path = ")" MESHWRIGHT_SOURCE_DIR
          R"(/tests/data/parity/train.bin"}])",
          trained),
      Row("dataset.mix.packing", R"([{name = "a", packing = true}])", refused),
      Row("dataset.mix.document_end",
          R"([{name = "a", kind = "text", packing = true, document_end = 32, path = ")" MESHWRIGHT_SOURCE_DIR
          R"(/LICENSE"}])",
          trained),
      Row("validation_dataset.set.name", R"([{name = "a", kind = "mock"}])", trained, kValidates),
      Row("validation_dataset.set.name", R"([{name = "a"}, {name = "a"}])", refused, kValidates),
      Row("validation_dataset.set.kind",
          R"([{name = "a", kind = "text", path = ")" MESHWRIGHT_SOURCE_DIR R"(/LICENSE"}])",
          trained, kValidates),
      Row("validation_dataset.set.path", R"([{name = "a", kind = "text"}])", refused, kValidates),
      Row("validation_dataset.set.path",
          R"([{name = "a", kind = "text", path = ")" MESHWRIGHT_SOURCE_DIR R"(/README.md"}])",
          trained, kValidates),
      Row("validation_dataset.set.plugin", R"([{name = "a", plugin = "nobody_has_it"}])", refused,
          kValidates),
      Row("validation_dataset.set.tokenizer",
          R"([{name = "a", kind = "text", tokenizer = ")" MESHWRIGHT_SOURCE_DIR
          R"(/configs/models/chat-tiny", path = ")" MESHWRIGHT_SOURCE_DIR R"(/LICENSE"}])",
          trained, both(kValidates, kChatTiny)),
      Row("validation_dataset.set.dtype",
          R"([{name = "a", kind = "tokens", dtype = "uint32", path = ")" MESHWRIGHT_SOURCE_DIR
          R"(/tests/data/parity/train.bin"}])",
          trained, kValidates),
      Row("validation_dataset.set.packing", R"([{name = "a", packing = true}])", refused,
          kValidates),
      Row("validation_dataset.set.document_end",
          R"([{name = "a", kind = "text", packing = true, document_end = 32, path = ")" MESHWRIGHT_SOURCE_DIR
          R"(/LICENSE"}])",
          trained, kValidates),
      Row("validation_dataset.kind", "mock", trained,
          {"validation_dataset.seq_len=8", "validation_dataset.path=LICENSE",
           "validation_dataset.num_batches=1"}),
      Row("validation_dataset.path", "LICENSE", trained,
          {"validation_dataset.seq_len=8", "validation_dataset.kind=text",
           "validation_dataset.path=README.md", "validation_dataset.num_batches=1"}),
      Row("validation_dataset.tokenizer", "bytes", trained,
          {"model.config=" MESHWRIGHT_SOURCE_DIR "/examples/recipes/pretrain/model/config.json",
           "validation_dataset.seq_len=8", "validation_dataset.kind=text",
           "validation_dataset.path=" MESHWRIGHT_SOURCE_DIR "/README.md",
           "validation_dataset.every_steps=2", "validation_dataset.num_batches=1"}),
      Row("validation_dataset.tokenizer", "bytes", told, kValidates),
      Row("validation_dataset.dtype", "uint16", told, kValidates),
      Row("validation_dataset.seq_len", "16", trained, kValidates),
      Row("validation_dataset.packing", "true", trained,
          {"validation_dataset.kind=text", "validation_dataset.path=LICENSE",
           "validation_dataset.seq_len=8", "validation_dataset.num_batches=1",
           "validation_dataset.document_end=32"}),
      Row("validation_dataset.document_end", "32", told, kValidates),
      Row("validation_dataset.plugin", "mine", test, {}, {},
          "tests/faults/data_test.cpp: a plugin's data train, with threads and without to the same "
          "numbers, and tell of it"),
      Row("validation_dataset.workers", "2", test, {}, {},
          "tests/faults/data_test.cpp: a plugin's data train, with threads and without to the same "
          "numbers, and tell of it"),
      Row("validation_dataset.shuffle", "true", trained, kValidates),
      Row("validation_dataset.every_steps", "1", trained, kValidates),
      Row("validation_dataset.num_batches", "2", trained, kValidates),
      // [checkpoint]
      Row("checkpoint.every_steps", "1", trained),
      Row("checkpoint.keep", "1", trained, kSaves),
      Row("checkpoint.keep_every", "1", trained, kSaves),
      Row("checkpoint.best", "true", trained, kValidates),
      Row("checkpoint.async", "true", test, {}, {},
          "engine/train/run/tests/checkpointing_test.cpp: a save beside training equals one that "
          "waits, and a failed one leaves the last good one"),
      Row("checkpoint.on_failure", "continue", test, {}, {},
          "tests/faults/disk_test.cpp: checkpoint.on_failure = continue: a failed save is told, "
          "training goes on, the next one is good"),
      Row("checkpoint.export", "final", trained),
      Row("checkpoint.resume", "nowhere", trained),
      // [report]
      Row("report.tensorboard", "true", trained),
      Row("report.csv", "true", trained),
      Row("report.step_details", "true", test, {}, {},
          "engine/train/run/tests/metrics_test.cpp: report.step_details prints all that the log "
          "has, with the time left"),
      Row("report.prometheus", "nowhere", refused),
      Row("report.prometheus", "127.0.0.1:0", test, {}, {},
          "tests/cli/monitors_test.cpp: a port that is taken and a place that cannot be are warned "
          "of, and training goes on"),
      Row("report.prometheus_file", "", refused),
      Row("report.prometheus_file", "x.prom", test, {}, {},
          "apps/observe/monitors/tests/prometheus_test.cpp: report.prometheus_file: a file, or a "
          "folder for one, whole at any time"),
      Row("report.machine", "", refused),
      Row("report.machine", "cpu", test, {}, {},
          "tests/train_configs/prediction_error_test.cpp: a run on a named machine compares time "
          "and memory at its end, in a line and in plan.json"),
      // [plugins]
      Row("plugins.path", "[\"/nowhere\"]", test, {}, {},
          "engine/plugins/tests/discovery_test.cpp: places are searched in order, and the first "
          "that has the strategy wins"),
      Row("plugins.load", "[\"/nowhere/libx.so\"]", refused),
      // [distributed]
      Row("distributed.strategy", "ddp", plan, {}, kNoDdp),
      Row("distributed.strategy", "fsdp2", plan, {}, {"ddp"}),
      Row("distributed.dp_size", "2", refused),
      Row("distributed.dp_replicate_size", "2", plan, {}, kSharded),
      Row("distributed.dp_replicate_size", "2", refused, {}, kOthers),
      Row("distributed.tp_size", "2", plan, {}, kNoDdp),
      Row("distributed.tp_size", "2", refused, {}, {"ddp"}),
      Row("distributed.cp_size", "2", plan, {}, kNoDdp),
      Row("distributed.cp_size", "2", refused, {}, {"ddp"}),
      Row("distributed.context.method", "ring", plan, {"distributed.cp_size=2"}, kNoDdp),
      Row("distributed.context.method", "ring", told),
      Row("distributed.context.load_balancer", "none", plan, {"distributed.cp_size=2"}, kNoDdp),
      Row("distributed.context.load_balancer", "none", told),
      Row("distributed.context.ring_size", "1", plan, {"distributed.cp_size=2"}, kNoDdp),
      Row("distributed.context.ring_size", "1", told),
      Row("distributed.context.ulysses_size", "2", plan, {"distributed.cp_size=2"}, kNoDdp),
      Row("distributed.context.ulysses_size", "2", told),
      Row("distributed.pp_size", "2", plan, {}, kSharded),
      Row("distributed.pp_size", "2", refused, {}, kOthers),
      Row("distributed.ep_size", "2", plan, kExperts, kSharded),
      Row("distributed.ep_size", "2", refused, kExperts, kOthers),
      Row("distributed.sequence_parallel", "true", plan, {"distributed.tp_size=2"}, {"fsdp2"}),
      Row("distributed.sequence_parallel", "true", refused, {"distributed.tp_size=2"}, {"moe_ep"}),
      Row("distributed.sequence_parallel", "true", told, {}, kSharded),
      Row("distributed.sequence_parallel", "true", refused, {}, kOthers),
      Row("distributed.tp_plan", "base", plan, {"distributed.tp_size=2"}, kSharded),
      Row("distributed.tp_plan", "base", told, {}, kSharded),
      Row("distributed.tp_plan", "base", refused, {}, kOthers),
      Row("distributed.activation_checkpointing", "full", plan),
      Row("distributed.activation_checkpointing_scope", "vision", told),
      Row("distributed.activation_checkpointing_scope", "vision", test, {}, {},
          "tests/frozen_submodules/frozen_submodules_test.cpp: the scope says which layers "
          "recompute, and one that meets none is told"),
      Row("distributed.autocast_dtype", "bfloat16", test, {}, {},
          "tests/frozen_submodules/frozen_submodules_test.cpp: recomputed layers find the autocast "
          "of their first run, and give the same bits"),
      Row("distributed.enable_async_tensor_parallel", "true", refused),
      Row("distributed.enable_async_tensor_parallel", "true", test, {}, {"fsdp2"},
          "tests/parity/trace_test.cpp: asynchronous tensor parallelism computes while the "
          "sequence is gathered and scattered"),
      Row("distributed.enable_async_tensor_parallel", "true", told,
          {"distributed.sequence_parallel=true"}, kSharded),
      // [distributed.mp_policy]
      Row("distributed.mp_policy.param_dtype", "float32", plan),
      Row("distributed.mp_policy.reduce_dtype", "bfloat16", plan),
      Row("distributed.mp_policy.output_dtype", "float32", test, {}, {},
          "sdk/parallel/tests/contract_test.cpp: mixed precision: dtypes of parameters, gradients, "
          "inputs and outputs"),
      Row("distributed.mp_policy.cast_forward_inputs", "false", test, {}, {},
          "sdk/parallel/tests/contract_test.cpp: mixed precision: dtypes of parameters, gradients, "
          "inputs and outputs"),
      // [distributed.moe]
      Row("distributed.moe.ignore_router_for_ac", "false", told,
          both(kExperts, {"distributed.activation_checkpointing=full"})),
      Row("distributed.moe.ignore_router_for_ac", "false", told, kExperts),
      Row("distributed.moe.ignore_router_for_ac", "false", told),
      Row("distributed.moe.dispatcher", "all_gather", plan, kExpertParallel, kSharded),
      Row("distributed.moe.dispatcher", "all_gather", told, kExperts),
      Row("distributed.moe.dispatcher", "all_gather", told),
      Row("distributed.moe.reshard_after_forward", "true", plan, kExpertParallel, kSharded),
      Row("distributed.moe.reshard_after_forward", "true", plan, kExperts, {"moe_ep"}),
      Row("distributed.moe.reshard_after_forward", "true", told, kExperts,
          {"ddp", "fsdp2", "megatron_fsdp"}),
      Row("distributed.moe.reshard_after_forward", "true", told),
      Row("distributed.moe.lm_head_precision", "float32", plan, kExpertParallel, kSharded),
      Row("distributed.moe.lm_head_precision", "bfloat16", told, kExpertParallel, kSharded),
      Row("distributed.moe.lm_head_precision", "float32", told, kExperts),
      Row("distributed.moe.lm_head_precision", "float32", told),
      Row("distributed.moe.wrap_outer_model", "false", test, {}, kSharded,
          "engine/train/run/tests/expert_parallel_test.cpp: without an outer root the logits keep "
          "the dtype of the head"),
      Row("distributed.moe.wrap_outer_model", "false", told, kExperts),
      Row("distributed.moe.wrap_outer_model", "false", told),
      Row("distributed.moe.fake_balanced_gate", "true", told, kExperts),
      Row("distributed.moe.fake_balanced_gate", "true", test, {}, {},
          "engine/train/run/tests/options_test.cpp: fake_balanced_gate in the file sends tokens to "
          "the experts in turns, leaves routers as they are, and is warned of"),
      Row("distributed.moe.fake_balanced_gate", "true", told),
      Row("distributed.moe.mp_policy.param_dtype", "float32", plan, kExpertParallel, kSharded),
      Row("distributed.moe.mp_policy.param_dtype", "float32", told, kExperts),
      Row("distributed.moe.mp_policy.reduce_dtype", "bfloat16", plan, kExpertParallel, kSharded),
      Row("distributed.moe.mp_policy.reduce_dtype", "bfloat16", told, kExperts),
      Row("distributed.moe.mp_policy.output_dtype", "float32", told, kExperts),
      Row("distributed.moe.mp_policy.cast_forward_inputs", "false", told, kExperts),
      // [distributed.pipeline]: without a pipeline the table is told; what it does to one is
      // planned in tests/plans.
      Row("distributed.pipeline.pp_schedule", "gpipe", told),
      Row("distributed.pipeline.pp_schedule_csv", "actions.csv", told),
      Row("distributed.pipeline.pp_microbatch_size", "2", told),
      Row("distributed.pipeline.pp_batch_size", "2", told),
      Row("distributed.pipeline.layers_per_stage", "1", told),
      Row("distributed.pipeline.first_stage_less_layers", "1", told),
      Row("distributed.pipeline.last_stage_less_layers", "1", told),
      Row("distributed.pipeline.round_virtual_stages_to_pp_multiple", "up", told),
      Row("distributed.pipeline.module_fqns_per_model_part",
          "[[\"model.embed_tokens\"], [\"lm_head\"]]", told),
      Row("distributed.pipeline.patch_inner_model", "false", told),
      Row("distributed.pipeline.patch_causal_lm_model", "false", told),
      Row("distributed.pipeline.patch_stage_backward_maybe_with_nosync", "true", told),
      Row("distributed.pipeline.dtype", "float32", told),
      Row("distributed.pipeline.scale_grads_in_schedule", "true", told),
      Row("distributed.pipeline.loss_fn", "a.b", told),
      Row("distributed.pipeline.pp_seq_len", "8", told),
      // [distributed.fsdp2], which moe_ep reads too
      Row("distributed.fsdp2.reshard_after_forward", "false", plan, {}, {"fsdp2"}),
      // To moe_ep, "auto" is what [distributed.moe] says.
      Row("distributed.fsdp2.reshard_after_forward", "true", plan, {}, {"moe_ep"}),
      Row("distributed.fsdp2.reshard_after_forward", "false", plan,
          both(kExperts, {"distributed.moe.reshard_after_forward=true"}), {"moe_ep"}),
      Row("distributed.fsdp2.offload_policy", "cpu", test, {}, {},
          "engine/train/run/tests/layouts_test.cpp: layouts: every two of strategy, axes, dtype, "
          "option and model take the steps of one process"),
      Row("distributed.fsdp2.offload_pin_memory", "false", told),
      Row("distributed.fsdp2.defer_fsdp_grad_sync", "false", plan),
      Row("distributed.fsdp2.enable_fsdp2_prefetch", "true", plan,
          {kPrefetches[0], kPrefetches[1]}),
      Row("distributed.fsdp2.enable_fsdp2_prefetch", "true", plan, {kPrefetches[0]}, {"fsdp2"}),
      Row("distributed.fsdp2.enable_fsdp2_prefetch", "true", told, {}, {"moe_ep"}),
      Row("distributed.fsdp2.enable_fsdp2_prefetch", "true", told,
          {"distributed.fsdp2.reshard_after_forward=false"}),
      Row("distributed.fsdp2.fsdp2_backward_prefetch_depth", "0", told),
      Row("distributed.fsdp2.fsdp2_backward_prefetch_depth", "0", plan, kPrefetches),
      Row("distributed.fsdp2.fsdp2_forward_prefetch_depth", "3", told),
      Row("distributed.fsdp2.fsdp2_forward_prefetch_depth", "3", plan, kPrefetches),
      Row("distributed.fsdp2.frozen_sharding", "per_layer", test, {}, {},
          "tests/frozen_submodules/frozen_submodules_test.cpp: a frozen tower in the root unit, in "
          "units of its own, or whole on every rank: the same losses, other places"),
      Row("distributed.fsdp2.backend", "gloo", test, {}, {},
          "engine/train/run/tests/options_test.cpp: a strategy's backend is the one that the ranks "
          "have, or an error that names the key"),
      Row("distributed.fsdp2.enable_compile", "true", told),
      Row("distributed.fsdp2.patch_is_packed_sequence", "true", told),
      // [distributed.megatron_fsdp]
      Row("distributed.megatron_fsdp.megatron_fsdp_unit_modules", "[\"LlamaMLP\"]", plan),
      Row("distributed.megatron_fsdp.zero_dp_strategy", "1", plan),
      Row("distributed.megatron_fsdp.init_fsdp_with_meta_device", "true", test, {}, {},
          "engine/train/run/tests/megatron_fsdp_options_test.cpp: on the meta device no rank ever "
          "holds the whole model"),
      Row("distributed.megatron_fsdp.grad_reduce_in_fp32", "true", plan,
          both(kHalf, {"distributed.mp_policy.reduce_dtype=bfloat16"})),
      Row("distributed.megatron_fsdp.preserve_fp32_weights", "true", plan, kHalf),
      Row("distributed.megatron_fsdp.overlap_grad_reduce", "false", told),
      Row("distributed.megatron_fsdp.overlap_grad_reduce", "false", test, {}, {},
          "engine/train/run/tests/megatron_fsdp_options_test.cpp: overlap_grad_reduce and "
          "overlap_param_gather move the communication, which the trace shows, and change no bit"),
      Row("distributed.megatron_fsdp.overlap_param_gather", "false", told),
      Row("distributed.megatron_fsdp.check_for_nan_in_grad", "false", test, {}, {},
          "engine/train/run/tests/megatron_fsdp_options_test.cpp: NaN and infinite gradients are "
          "found after or before the reduction, and their parameter is named on every rank"),
      Row("distributed.megatron_fsdp.report_nan_in_param_grad", "true", test, {}, {},
          "engine/train/run/tests/megatron_fsdp_options_test.cpp: NaN and infinite gradients are "
          "found after or before the reduction, and their parameter is named on every rank"),
      Row("distributed.megatron_fsdp.average_in_collective", "true", test, {}, {},
          "engine/train/run/tests/megatron_fsdp_options_test.cpp: gradients are averaged before "
          "the sum or in it: the same where the division is exact, another rounding where it is "
          "not"),
      Row("distributed.megatron_fsdp.average_in_collective", "true", told,
          {"distributed.megatron_fsdp.calculate_per_token_loss=true"}),
      Row("distributed.megatron_fsdp.disable_bucketing", "true", plan),
      Row("distributed.megatron_fsdp.calculate_per_token_loss", "true", test, {}, {},
          "engine/train/run/tests/megatron_fsdp_options_test.cpp: calculate_per_token_loss sums "
          "gradients, and the training comes to the same"),
      Row("distributed.megatron_fsdp.keep_fp8_transpose_cache", "true", refused),
      Row("distributed.megatron_fsdp.nccl_ub", "true", told),
      Row("distributed.megatron_fsdp.fsdp_double_buffer", "true", test, {}, {},
          "engine/train/run/tests/megatron_fsdp_options_test.cpp: with double buffering, no "
          "communication buffer is allocated after the first step"),
      Row("distributed.megatron_fsdp.backend", "gloo", test, {}, {},
          "engine/train/run/tests/options_test.cpp: a strategy's backend is the one that the ranks "
          "have, or an error that names the key"),
      // [distributed.ddp]
      Row("distributed.ddp.broadcast_buffers", "true", test, {}, {},
          "engine/train/run/tests/options_test.cpp: ddp's broadcast_buffers: rank 0's buffers "
          "reach all before every step when the file asks for it, else once"),
      Row("distributed.ddp.find_unused_parameters", "true", test, {}, {},
          "engine/train/run/tests/options_test.cpp: ddp's find_unused_parameters: a parameter that "
          "nothing uses is an error that names the key, or has no gradient"),
      Row("distributed.ddp.static_graph", "true", test, {}, {},
          "engine/train/run/tests/options_test.cpp: ddp's static_graph: the first step says what "
          "is used, and another set later is an error that names the key"),
      Row("distributed.ddp.bucket_cap_mb", "0.01", plan),
      Row("distributed.ddp.gradient_as_bucket_view", "false", plan),
      Row("distributed.ddp.backend", "gloo", test, {}, {},
          "engine/train/run/tests/options_test.cpp: a strategy's backend is the one that the ranks "
          "have, or an error that names the key"),
  };
  return all;
}

}  // namespace meshwright::keys
