// The engine's own tables. Names, defaults and ranges are what users write; docs/reference.md and
// the JSON Schema come from here.
#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config/config.h"
#include "engine/config/sources.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/base/words.h"

namespace meshwright::config {
namespace {

constexpr meshwright_option text(const char* name, const char* default_value, const char* doc) {
  return option(name, MESHWRIGHT_STRING, default_value, doc);
}
constexpr meshwright_option optional_text(const char* name, const char* doc) {
  return with_flags(text(name, nullptr, doc), MESHWRIGHT_OPTIONAL);
}
// Names of modules and a number each.
constexpr meshwright_option modules(const char* name, const char* doc) {
  return with_flags(option(name, MESHWRIGHT_STRING_MAP, nullptr, doc), MESHWRIGHT_OPTIONAL);
}
constexpr meshwright_option number(const char* name, const char* default_value, double min,
                                   const char* doc, bool open = false) {
  meshwright_option o = option(name, MESHWRIGHT_NUMBER, default_value, doc);
  o.min = min;
  o.flags = MESHWRIGHT_NO_MAX | (open ? MESHWRIGHT_OPEN_MIN : 0);
  return o;
}
constexpr meshwright_option at_most(meshwright_option o, double max) {
  o.max = max;
  o.flags &= ~static_cast<uint32_t>(MESHWRIGHT_NO_MAX);
  return o;
}
constexpr meshwright_option betas() {
  meshwright_option o = option("betas", MESHWRIGHT_NUMBER_LIST, "[0.9, 0.95]",
                               "AdamW's two decay rates, each from 0 to below 1.");
  o.min = 0;
  o.max = 0.999999999;
  o.flags = 0;
  return o;
}

constexpr std::array kRoot = {
    at_most(int_option("schema", "1", 1, "Version of this file's layout."), 1)};

constexpr std::array kRun = {
    text("name", "\"first\"", "Results go to <dir>/<name>/."),
    text("dir", "\"runs\"", "Folder of all runs, from the current folder."),
    int_option("seed", "42", 0, "Seed of initialisation and shuffling."),
    with_flags(int_option("threads", "\"auto\"", 1,
                          "Threads a rank. \"auto\": OMP_NUM_THREADS, else cores / local ranks."),
               MESHWRIGHT_OPTIONAL),
    bool_option("deterministic", false, "Only deterministic kernels."),
    choice_option(
        "float32_matmul_precision", "\"highest\"", "highest|high",
        "Matrix products of float32 on devices. highest: in float32; high: in TF32, which "
        "keeps 10 bits behind the point. No effect on CPUs."),
    bool_option("stop_on_nonfinite", true,
                "A non-finite loss or norm ends the run (exit 5) before the optimizer step."),
    with_flags(number("skip_step_above_z", nullptr, 0,
                      "A step whose loss or gradient norm lies more standard deviations than this "
                      "above the median of the last 100 steps leaves its update out; 6, say. "
                      "\"none\": every step updates.",
                      true),
               MESHWRIGHT_OPTIONAL),
};

constexpr std::array kModel = {
    optional_text(
        "config",
        "A Hugging Face config.json: random weights of that shape. Instead of pretrained."),
    optional_text("pretrained",
                  "A Hugging Face folder with config.json and safetensors. Instead of config."),
    optional_text("plugin",
                  "A model family that a plugin brings, with options in [model.<its name>]; what "
                  "config and pretrained are then is the family's own matter."),
    with_flags(choice_option("torch_dtype", "\"float32\"", text::kTrainingDTypes,
                             "Storage of the weights that the optimizer updates."),
               MESHWRIGHT_DTYPE),
    bool_option("float8_linear", false,
                "Linears of layers multiply in 8-bit floats, each matrix scaled by its largest "
                "element. Experts, heads and sizes that are no multiples of 16 do not."),
};

constexpr std::array kDistEnv = {
    choice_option("device", "\"auto\"", "auto|cpu|cuda", "Where the ranks compute."),
    choice_option("backend", "\"auto\"", "auto|nccl|gloo",
                  "Communication back end; gloo also carries CUDA tensors."),
    number("timeout_minutes", "10", 0, "Limit of every collective; may be a fraction.", true),
    bool_option("cuda_graphs", false,
                "The work of each layer's forward and of its backward is launched as one (CUDA "
                "graphs), where shapes stay."),
    bool_option("expandable_segments", false,
                "Segments of LibTorch's CUDA allocator grow, so that less memory lies idle between "
                "tensors of many sizes. PYTORCH_ALLOC_CONF comes before it."),
    with_flags(text("interface", "\"auto\"",
                    "Network interface between hosts (\"eth0\"). \"auto\": the route to "
                    "MASTER_ADDR. GLOO_SOCKET_IFNAME comes before it."),
               MESHWRIGHT_OPTIONAL),
    at_most(
        int_option("connections_per_peer", "1", 1,
                   "TCP connections of two ranks on different hosts in each group, for links "
                   "that one does not fill. For NCCL's sockets it sets "
                   "NCCL_NSOCKS_PERTHREAD and NCCL_SOCKET_NTHREADS, unless one of them is set."),
        8),
};

constexpr std::array kStepScheduler = {
    int_option("global_batch_size", "64", 1,
               "Samples a step; local_batch_size * dp * accumulation."),
    int_option("local_batch_size", "4", 1, "Samples a rank and micro-batch."),
    with_flags(int_option("max_steps", "200", 0, "Optimizer steps; \"none\": as epochs says."),
               MESHWRIGHT_OPTIONAL),
    with_flags(int_option("epochs", nullptr, 1,
                          "How often the run reads all of [dataset], in place of max_steps. The "
                          "last step is filled from the next epoch where it has room."),
               MESHWRIGHT_OPTIONAL),
};

constexpr std::array kOptimizer = {
    choice_option("name", "\"adamw\"", "adamw|sgd", "The optimizer."),
    number("lr", "3e-4", 0, "Learning rate after warm-up."),
    betas(),
    number("eps", "1e-8", 0, "AdamW's epsilon.", true),
    number("weight_decay", "0.1", 0,
           "Decoupled weight decay, on every parameter that neither no_decay nor a group says "
           "otherwise of."),
    choice_option(
        "no_decay", "\"none\"", "none|norms_and_biases",
        "Parameters without weight decay, unless their group has one of its own: none, or "
        "all of one dimension."),
    at_most(number("momentum", "0", 0, "SGD's momentum."), 1),
    with_flags(number("max_grad_norm", "1.0", 0,
                      "Gradients are clipped to this L2 norm; \"none\": not clipped.", true),
               MESHWRIGHT_OPTIONAL),
    with_flags(choice_option("main_dtype", nullptr, "float32|float64",
                             "Dtype of the weights that the optimizer updates and of its state, "
                             "where model.torch_dtype is narrower; \"none\": "
                             "that of model.torch_dtype."),
               MESHWRIGHT_OPTIONAL),
    with_flags(
        number("loss_scale", "\"auto\"", 1,
               "What losses are multiplied by before backward where gradients are float16, a "
               "power of two. \"auto\": the largest up to the targets of a step on a rank, "
               "at most 65536."),
        MESHWRIGHT_OPTIONAL),
    bool_option("dynamic_loss_scale", false,
                "loss_scale is where it begins: a step whose float16 gradients overflow is left "
                "out and halves it, 2000 without one double it."),
};

constexpr std::array kGroup = {
    text("pattern", nullptr,
         "Full names of parameters, \"model.embed_tokens.*\": * is any run of characters, dots "
         "among them, ? one, [ab] one of these. A parameter is of the first group that matches."),
    number("lr_factor", "1", 0, "The learning rate is this times that of the step."),
    with_flags(number("weight_decay", nullptr, 0,
                      "Of these parameters; \"none\": as optimizer.weight_decay and "
                      "optimizer.no_decay say."),
               MESHWRIGHT_OPTIONAL),
    bool_option("frozen", false,
                "The parameters stay as they are: no gradients, no optimizer state, no part in the "
                "gradient norm. false, beside [lora]: they train as a whole."),
};

constexpr std::array kLora = {
    with_aliases(
        int_option("r", "0", 0,
                   "Rank of the adapters; 0: none, the whole model trains. Above 0 they train "
                   "alone, and what a group with frozen = false names."),
        "dim"),
    number("alpha", "32", 0, "Adapters count alpha / r times.", true),
    with_aliases(
        option("target_modules", MESHWRIGHT_STRING | MESHWRIGHT_STRING_LIST, "\"all-linear\"",
               "Linears that get an adapter: last parts of a name (\"q_proj\", "
               "\"self_attn.q_proj\"), or a pattern of full names "
               "(\"model.layers.0.*.q_proj\", * within a part). \"all-linear\": all but heads."),
        "match_all_linear{true=all-linear,false=}"),
    option("exclude_modules", MESHWRIGHT_STRING_LIST, "[]", "Linears that get none, named alike."),
    modules("rank_pattern",
            "Other ranks for some: { q_proj = 16 }. Names as in peft's file: a last name, a full "
            "one, or an expression of its last parts; the first that fits counts."),
    modules("alpha_pattern", "Another alpha for some, named alike."),
    at_most(number("dropout", "0", 0,
                   "Share of what adapters read that is dropped in training, the same on every "
                   "layout."),
            0.99),
    bool_option("rslora", false, "Adapters count alpha / sqrt(r) times instead."),
    bool_option("dora", false, "DoRA, a magnitude a row beside the adapters: not in this version."),
    choice_option("init", "\"kaiming\"", "kaiming|gaussian",
                  "A at the start: uniform within 1 / sqrt(in), or normal of deviation 1 / r. B is "
                  "zero."),
    optional_text(
        "adapter",
        "A folder with adapter_config.json and adapter_model.safetensors, of peft or of "
        "an export: the adapters begin as these. r, alpha, rslora and the modules are those of "
        "the folder, unless they are set, which then must be the same."),
    choice_option("export", "\"adapter\"", "adapter|merged|both|none",
                  "What checkpoint.export writes: the adapters as peft reads them, the whole model "
                  "with them in its weights, both (the adapters then in hf_adapter/), or nothing."),
    choice_option("base_dtype", "\"auto\"", "auto|float32|bfloat16|float16",
                  "Storage of what is frozen beside the adapters. auto: the dtype that it computes "
                  "in (mp_policy.param_dtype) where that has fewer bytes than model.torch_dtype."),
    choice_option("base_sharding", "\"shard\"", "shard|replicate",
                  "shard: what is frozen lies as the strategy has it. replicate: every data rank "
                  "keeps it whole, and nothing of it is gathered."),
};

constexpr std::array kLrScheduler = {
    choice_option("lr_decay_style", "\"cosine\"", "constant|linear|cosine|wsd",
                  "Shape of the decay after warm-up; wsd decays over the last 10%."),
    int_option("lr_warmup_steps", "20", 0, "Steps of linear warm-up."),
    number("min_lr", "0", 0,
           "Learning rate at the last step, where that comes after the warm-up and is not the only "
           "one; "
           "not above lr."),
};

#define MESHWRIGHT_DATASET_OPTIONS                                                                \
  choice_option("kind", "\"text\"", "text|tokens|megatron|mock",                                  \
                "text: files of text; tokens: .bin; megatron: .bin with .idx; mock: synthetic."), \
      optional_text("path", "File, or pattern like data/*.txt, from the current folder."),        \
      optional_text("plugin",                                                                     \
                    "A data set that a plugin brings, in place of kind, with options in a table " \
                    "of its name below this one."),                                               \
      optional_text(                                                                              \
          "tokenizer",                                                                            \
          "Of text: a folder with tokenizer.json, whose tokens are learnt, or \"bytes\". "        \
          "Not set: that of model.pretrained or beside model.config where there is one, else "    \
          "bytes; of [validation_dataset] as [dataset] has it."),                                 \
      choice_option("dtype", "\"auto\"", "auto|uint16|uint32",                                    \
                    "Element type of tokens without a header."),                                  \
      int_option("seq_len", "512", 1, "Tokens a sample."),                                        \
      at_most(int_option("workers", "0", 0,                                                       \
                         "Threads of a rank that read samples before a step asks for them; 0: "   \
                         "the step reads them itself."),                                          \
              256),                                                                               \
      bool_option("packing", false,                                                               \
                  "Documents in a sample are apart: each token sees its own one alone, "          \
                  "positions begin anew, and no document predicts the next."),                    \
      with_flags(                                                                                 \
          int_option("document_end", nullptr, 0, "The token that ends a document, for packing."), \
          MESHWRIGHT_OPTIONAL)

constexpr std::array kDataset = {
    MESHWRIGHT_DATASET_OPTIONS,
    bool_option("shuffle", true, "A new order every epoch, the same on every layout."),
    choice_option("verify", "\"sample\"", "sample|whole",
                  "How ranks compare data and weights above 64 MiB before the first step; whole: "
                  "every byte.")};
constexpr std::array kValidation = {
    MESHWRIGHT_DATASET_OPTIONS, bool_option("shuffle", false, "Draw samples in random order."),
    int_option("every_steps", "100", 1, "Validate every so many steps."),
    int_option("num_batches", "8", 1,
               "Global batches a validation; of fewer samples each counts once.")};
#undef MESHWRIGHT_DATASET_OPTIONS

constexpr std::array kMix = {
    text("name", nullptr, "What this source is called in messages, metrics and checkpoints."),
    with_flags(
        number("weight", nullptr, 0,
               "Its share of the samples, against the sum of all weights. Not set, nor epochs: "
               "1."),
        MESHWRIGHT_OPTIONAL),
    with_flags(
        number("epochs", nullptr, 0,
               "How often it is read while the mix is read once; in place of weight, then of "
               "every source.",
               true),
        MESHWRIGHT_OPTIONAL),
    with_flags(option("schedule", MESHWRIGHT_STRING_MAP, nullptr,
                      "Other weights from some steps on, each until the next: { 1000 = 0.2 }. 0: "
                      "nothing is read of it."),
               MESHWRIGHT_OPTIONAL)};
constexpr std::array kSet = {
    text("name", nullptr, "What its loss is called in messages and metrics.")};

// What each source of a table says of itself; where it does not, the table says it.
const std::vector<meshwright_option>& inherited_options() {
  static const std::vector<meshwright_option> options = [] {
    constexpr std::string_view kOfAll[] = {"seq_len", "workers", "shuffle", "verify"};
    std::vector<meshwright_option> out;
    for (meshwright_option one : kDataset) {
      if (std::ranges::find(kOfAll, one.name) != std::end(kOfAll)) continue;
      one.default_value = nullptr;
      one.flags |= MESHWRIGHT_OPTIONAL;
      if (one.name == std::string_view("plugin"))
        one.doc =
            "A data set that a plugin brings, in place of kind; its options are those of the table "
            "of its name below this one, and where that has none below [dataset] or "
            "[validation_dataset].";
      out.push_back(one);
    }
    return out;
  }();
  return options;
}

OptionSchema source_schema(const char* table, std::span<const meshwright_option> own) {
  OptionSchema out = make_schema(table, "engine", own);
  for (const meshwright_option& one : inherited_options()) out.options.push_back(&one);
  return out;
}

constexpr std::array kCheckpoint = {
    int_option("every_steps", "50", 0, "Save every so many steps; 0: only at the end."),
    int_option("keep", "2", 1, "How many checkpoints are kept: the newest."),
    int_option("keep_every", "0", 0,
               "Keep for good, beside these, the checkpoints of steps that it divides; 0: none."),
    bool_option("best", false,
                "Save whenever the validation loss is the lowest so far, and keep that checkpoint, "
                "linked as best."),
    bool_option("async", false, "Write in the background after a snapshot."),
    choice_option("on_failure", "\"stop\"", "stop|continue", "What a failed save does to the run."),
    choice_option("export", "\"none\"", "none|final|every",
                  "When a Hugging Face folder is written beside the checkpoint."),
    text("resume", "\"auto\"",
         "auto: continue the run if its folder has a complete checkpoint; none: start afresh; or a "
         "checkpoint's path."),
};

constexpr std::array kReport = {
    bool_option("tensorboard", false, "Event files for TensorBoard, in the run's tensorboard/."),
    bool_option("csv", false, "metrics.csv beside metrics.jsonl, a line a step."),
    bool_option("step_details", false,
                "Steps are printed with all that run.log says of them: MFU, waiting for data and "
                "communication, the slowest rank, load of experts. false: loss, norm, rate, "
                "speed."),
    optional_text(
        "prometheus",
        "Address that answers Prometheus at /metrics: \"127.0.0.1:9400\". A port alone is "
        "this machine's own; \"0.0.0.0:9400\" is all interfaces (\"[::]:9400\" where civetweb has "
        "IPv6), port 0 is one that is free."),
    optional_text("prometheus_file",
                  "The same for node_exporter's textfile collector: a file that ends in .prom, or "
                  "the collector's folder, where it becomes meshwright_<run.name>.prom."),
    optional_text("machine",
                  "Machine that a run predicts its step time on, to compare at its end: a shipped "
                  "one or a machine file, as plan --machine takes it, which it stands in for. Not "
                  "set: the one whose device the driver reports."),
};

constexpr std::array kPlugins = {
    option("path", MESHWRIGHT_STRING_LIST, "[]",
           "Folders to look for plugins in, from this file's folder."),
    option("load", MESHWRIGHT_STRING_LIST, "[]",
           "Plugin libraries to load, from this file's folder."),
};

}  // namespace

std::vector<OptionSchema> engine_schemas() {
  return {make_schema("", "engine", kRoot),
          make_schema("run", "engine", kRun),
          make_schema("model", "engine", kModel),
          make_schema("dist_env", "engine", kDistEnv),
          distributed_schema(),
          mp_policy_schema(),
          moe_schema(),
          moe_mp_policy_schema(),
          pipeline_schema(),
          context_schema(),
          make_schema("step_scheduler", "engine", kStepScheduler),
          make_schema("optimizer", "engine", kOptimizer),
          make_schema("lora", "engine", kLora),
          make_schema("lr_scheduler", "engine", kLrScheduler),
          make_schema("dataset", "engine", kDataset),
          make_schema("validation_dataset", "engine", kValidation),
          make_schema("checkpoint", "engine", kCheckpoint),
          make_schema("report", "engine", kReport),
          make_schema("plugins", "engine", kPlugins)};
}

std::vector<OptionSchema> list_schemas() {
  return {make_schema(kGroupTable, "engine", kGroup), source_schema(kMixTable, kMix),
          source_schema(kSetTable, kSet)};
}

bool is_list(const std::string& table) {
  return table == kGroupTable || table == kMixTable || table == kSetTable;
}

}  // namespace meshwright::config
