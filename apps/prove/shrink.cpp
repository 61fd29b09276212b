#include "apps/prove/shrink.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <filesystem>
#include <functional>
#include <numeric>
#include <set>
#include <string_view>

#include "engine/config/source.h"
#include "engine/config/toml_value.h"
#include "engine/models/models.h"
#include "engine/train/preflight/same_run.h"
#include "meshwright/error.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/handed_files.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/words.h"

namespace meshwright::prove {

namespace json = boost::json;
using config::Value;

namespace {

constexpr const char* kModelFile = "shrunk by prove/config.json";

// A tree of TOML, by dotted keys whose parts are bare words.
Value* find(Value& root, std::string_view key) {
  Value* at = &root;
  for (const std::string& part : text::split(key, '.')) {
    config::Entry* entry = at->is_table() ? at->find(part) : nullptr;
    if (entry == nullptr) return nullptr;
    at = &entry->value;
  }
  return at;
}

void put(Value& root, std::string_view key, Value value) {
  Value* at = &root;
  for (const std::string& part : text::split(key, '.')) {
    config::Entry* entry = at->find(part);
    if (entry == nullptr) {
      at->entries.push_back({part, {}, Value()});
      entry = &at->entries.back();
    }
    at = &entry->value;
  }
  *at = std::move(value);
}
void put(Value& root, std::string_view key, int64_t number) {
  put(root, key, config::integer_value(number));
}
void put(Value& root, std::string_view key, const char* word) { put(root, key, Value(word)); }

void erase(Value& table, std::string_view key) {
  std::erase_if(table.entries, [&](const config::Entry& entry) { return entry.key == key; });
}

// Tables alone, each on one line.
std::string text_of(const Value& root) {
  std::string out;
  for (const config::Entry& entry : root.entries)
    out += config::join_key("", entry.key) + " = " + config::to_toml(entry.value) + "\n";
  return out;
}

// The sizes of a try: each attribute even, or uneven where the strategy allows it.
struct Sizes {
  bool heads = false, inner = false, vocabulary = false, layers = false, length = false;
};

struct Structure {
  ParallelSizes sizes;
  int64_t stages = 1;  // of a pipeline; 1: none
  bool slides = false;
};

int64_t integer_of(const json::object& object, std::string_view key, int64_t fallback) {
  const json::value* found = object.if_contains(key);
  return found != nullptr && found->is_int64() ? found->as_int64() : fallback;
}

class ModelFile {
 public:
  explicit ModelFile(const std::string& text) : whole_(json::parse(text).as_object()) {}

  // Fields that are there, or that their family must have, at sizes that keep the axes.
  json::object small(const Structure& job, const Sizes& uneven) const {
    json::object out = whole_;
    const int64_t tp = std::max<int64_t>(job.sizes.tp, 1), cp = std::max<int64_t>(job.sizes.cp, 1);
    const int64_t heads = integer_of(whole_, "num_attention_heads", 1),
                  kv = integer_of(whole_, "num_key_value_heads", heads);
    const int64_t each =
        std::min<int64_t>(std::max<int64_t>(heads / std::max<int64_t>(kv, 1), 1), 2);
    int64_t small_kv = kv < tp ? kv : tp * cp;
    if (uneven.heads && kv >= tp) small_kv = tp + 1;
    int64_t small_heads = kv < tp ? std::lcm(kv, tp) : small_kv * each;
    if (uneven.heads && kv < tp) small_heads += kv;
    const int64_t width = head_width();
    out["num_attention_heads"] = small_heads;
    if (whole_.contains("num_key_value_heads")) out["num_key_value_heads"] = small_kv;
    out["hidden_size"] = small_heads * width;
    if (whole_.contains("head_dim")) out["head_dim"] = width;
    const int64_t inner = uneven.inner ? 8 * tp + 5 : 8 * tp;
    for (const char* key : {"intermediate_size", "moe_intermediate_size"})
      if (whole_.contains(key)) out[key] = inner;
    const int64_t vocabulary = uneven.vocabulary ? 61 : 64;
    out["vocab_size"] = vocabulary;
    for (auto& field : out)
      if (field.key().ends_with("_token_id") && field.value().is_int64() &&
          field.value().as_int64() >= vocabulary)
        field.value() = vocabulary - 1;
    fill_layers(out, job, uneven.layers);
    fill_experts(out, job);
    for (const char* key : {"sliding_window"})
      if (integer_of(whole_, key, 0) > 5) out[key] = 5;
    if (whole_.contains("query_pre_attn_scalar")) out["query_pre_attn_scalar"] = width;
    for (const char* key : {"rope_scaling", "rope_parameters"}) fit_rope(out, key, width / 2);
    for (const char* key : kDropouts)
      if (whole_.contains(key)) out[key] = 0.0;
    return out;
  }

  std::vector<std::string> dropouts() const {
    std::vector<std::string> out;
    for (const char* key : kDropouts)
      if (const json::value* found = whole_.if_contains(key);
          found != nullptr && found->is_number() && found->to_number<double>() > 0)
        out.emplace_back(key);
    return out;
  }
  const json::object& whole() const { return whole_; }

 private:
  static constexpr const char* kDropouts[] = {"attention_dropout", "resid_pdrop", "embd_pdrop",
                                              "attn_pdrop", "hidden_dropout"};

  // Wide enough that a part of it can be rotated.
  int64_t head_width() const {
    const json::value* part = whole_.if_contains("partial_rotary_factor");
    return part != nullptr && part->is_number() && part->to_number<double>() < 1 ? 20 : 8;
  }

  void fill_layers(json::object& out, const Structure& job, bool uneven) const {
    const int64_t all = integer_of(whole_, "num_hidden_layers", 1);
    int64_t layers = std::max<int64_t>(job.stages, 2);
    if (job.stages > 1 && uneven) ++layers;
    if (const json::value* types = whole_.if_contains("layer_types"); types && types->is_array()) {
      // One of each kind, in turns.
      json::array kinds, kept;
      for (const json::value& type : types->as_array())
        if (std::ranges::find(kinds, type) == kinds.end()) kinds.push_back(type);
      layers = std::max<int64_t>(layers, static_cast<int64_t>(kinds.size()));
      for (int64_t i = 0; i < layers; ++i)
        kept.push_back(kinds[static_cast<size_t>(i) % kinds.size()]);
      out["layer_types"] = kept;
    }
    out["num_hidden_layers"] = std::min(layers, std::max(all, job.stages));
    if (integer_of(whole_, "sliding_window_pattern", 0) > 2) out["sliding_window_pattern"] = 2;
    if (const json::value* dense = whole_.if_contains("mlp_only_layers");
        dense && dense->is_array() && !dense->as_array().empty())
      out["mlp_only_layers"] = json::array{0};
    if (integer_of(whole_, "decoder_sparse_step", 1) > 1) out["decoder_sparse_step"] = 2;
  }

  void fill_experts(json::object& out, const Structure& job) const {
    const int64_t ep = std::max<int64_t>(job.sizes.ep, 1), experts = ep * ((4 + ep - 1) / ep);
    for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts"})
      if (integer_of(whole_, key, 0) > 0) out[key] = experts;
    if (integer_of(whole_, "num_experts_per_tok", 0) > 2) out["num_experts_per_tok"] = 2;
  }

  static void fit_rope(json::object& out, const char* key, int64_t half) {
    json::value* rope = out.if_contains(key);
    if (rope == nullptr || !rope->is_object()) return;
    for (auto& field : rope->as_object())
      if (field.value().is_array() && field.value().as_array().size() > static_cast<size_t>(half))
        field.value().as_array().resize(static_cast<size_t>(half));
  }

  json::object whole_;
};

// "heads 6 (of 32)" for the fields that have changed.
std::vector<std::string> cut_sizes(const json::object& whole, const json::object& small) {
  std::vector<std::string> out;
  for (const char* key :
       {"num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads",
        "head_dim", "intermediate_size", "moe_intermediate_size", "num_local_experts",
        "num_experts", "num_experts_per_tok", "vocab_size", "sliding_window"}) {
    const int64_t was = integer_of(whole, key, -1), is = integer_of(small, key, -1);
    if (is > 0 && was != is)
      out.push_back(std::string(key) + " " + std::to_string(is) +
                    (was > 0 ? " (of " + std::to_string(was) + ")" : ""));
  }
  return out;
}

std::optional<plan::Job> job_of(const std::string& toml, Diagnostics& found) {
  config::LoadOptions options;
  options.file = "the proof's configuration";
  return plan::load_job(config::Source::parse(toml, options, found), found);
}

// How a try fares: planned, and could be trained.
std::optional<plan::JobPlan> planned(const std::string& toml, int64_t world,
                                     std::optional<Error>* why = nullptr) {
  try {
    Diagnostics found;
    std::optional<plan::Job> job = job_of(toml, found);
    found.throw_if_any();
    plan::JobPlan plan = plan::make_plan(*job, {.world_size = world});
    plan::check_runs(plan, *job);
    // A stage may have modules that rank 0's has none of.
    const int64_t stages = std::max<int64_t>(job->config.shared.sizes.pp, 1);
    for (int64_t stage = 1; stage < stages; ++stage)
      plan::make_plan(*job, {.world_size = world, .rank = world / stages * stage});
    return plan;
  } catch (const Error& error) {
    if (why != nullptr && !*why) *why = error;
    return std::nullopt;
  }
}

class Shrinking {
 public:
  Shrinking(const plan::Job& job, int64_t world) : job_(job), world_(world) {
    Diagnostics found;
    std::optional<Value> root =
        config::parse_toml(before::resolved_toml(job), "config.resolved.toml", found);
    found.throw_if_any();
    root_ = std::move(*root);
    structure_.sizes = job.config.shared.sizes;
  }

  Shrunk run() {
    leave_out();
    read_model();
    cut_axes();
    count_stages();
    // All even first: what cannot be had so cannot be had at all. Then each size that may be
    // uneven.
    Sizes sizes;
    std::optional<Error> why;
    std::optional<plan::JobPlan> plan = try_worlds(sizes, &why);
    if (!plan)
      throw Error(*why).note("so it is told of the job's smallest form, whose sizes are cut");
    for (bool Sizes::* uneven :
         {&Sizes::heads, &Sizes::inner, &Sizes::vocabulary, &Sizes::layers, &Sizes::length}) {
      Sizes more = sizes;
      more.*uneven = true;
      if (std::optional<plan::JobPlan> found = planned(ranks_toml(more, out_.ranks), out_.ranks)) {
        sizes = more;
        plan = std::move(found);
      }
    }
    finish(sizes, *plan);
    return std::move(out_);
  }

 private:
  // What a proof has no part for; what the job has of it is told.
  void leave_out() {
    auto missing = [&](const std::string& what) { out_.not_proven.push_back(what); };
    const config::Config& config = job_.config;
    const Options& model = config.table("model");
    if (model.get_bool("float8_linear"))
      missing("model.float8_linear: products in 8 bits are those of devices");
    if (config.table("lora").get_int("r") > 0 && config.table("lora").get_number("dropout") > 0)
      missing("lora.dropout: set to 0");
    if (config.table("run").is_set("skip_step_above_z"))
      missing("run.skip_step_above_z: no step is left out");
    if (config.table("dist_env").get_string("device") == "cuda" ||
        config.table("dist_env").get_bool("cuda_graphs"))
      missing("kernels and collectives of devices: the proof computes on the CPU");
    missing("the data: samples are made up" +
            std::string(job_.dataset ? ", several documents each" : ""));
    const int64_t seed = config.table("run").get_int("seed");
    for (const char* table : {"run", "dist_env", "step_scheduler", "lr_scheduler", "dataset",
                              "validation_dataset", "checkpoint", "report"})
      erase(root_, table);
    put(root_, "run.seed", seed);
    put(root_, "dist_env.device", "cpu");
    put(root_, "lr_scheduler.lr_decay_style", "constant");
    put(root_, "lr_scheduler.lr_warmup_steps", int64_t{0});
    put(root_, "dataset.kind", "mock");
    if (Value* lora = find(root_, "lora")) {
      erase(*lora, "adapter");
      erase(*lora, "dropout");
    }
    if (Value* own = find(root_, "model")) erase(*own, "float8_linear");
    // As megatron_fsdp names them.
    if (const Value* distributed = find(root_, "distributed"))
      for (const config::Entry& table : distributed->entries)
        for (const config::Entry& option : table.value.entries)
          if (option.value.boolean && option.key.find("fp32") != std::string::npos)
            out_.wide_sets.push_back("distributed." + table.key + "." + option.key + "=false");
    out_.documents = job_.dataset.has_value();
    const Options& optimizer = config.table("optimizer");
    // Surely below the norm, so that clipping takes part where the job clips.
    if (optimizer.is_set("max_grad_norm") && optimizer.get_number("max_grad_norm") > 0)
      put(root_, "optimizer.max_grad_norm", config::number_value(0.05));
    out_.one_dtype = model.find_dtype("torch_dtype") == DType::float64;
  }

  void read_model() {
    const Options& model = job_.config.table("model");
    const std::filesystem::path file = config::model_config_file(model);
    if (job_.model || file.empty()) {
      out_.not_proven.emplace_back(
          "smaller sizes: the model of a plugin is taken as its options make it");
      return;
    }
    outlines::load_outline(file, DType::float32);  // says what is wrong with it
    const std::string* handed = base::handed_file(file);
    model_.emplace(handed != nullptr ? *handed : base::read_file(file));
    for (const std::string& name : model_->dropouts())
      out_.not_proven.push_back("dropout: " + name + " is set to 0");
    put(root_, "model.config", kModelFile);
    erase(*find(root_, "model"), "pretrained");
  }

  int64_t fixed_ranks() const {
    const ParallelSizes& s = structure_.sizes;
    return s.tp * s.cp * s.pp * s.dp_replicate;
  }

  // Axes of more ranks than a proof has are halved, the largest first.
  void cut_axes() {
    ParallelSizes& s = structure_.sizes;
    const ParallelSizes was = s;
    while (fixed_ranks() > kMostRanks / 2 || s.ep > kMostRanks / 2) {
      int64_t* widest = &s.ep;
      for (int64_t* size : {&s.tp, &s.cp, &s.pp, &s.dp_replicate})
        if (*size > *widest) widest = size;
      if (*widest < 2) break;
      *widest = (*widest + 1) / 2;
    }
    auto told = [&](const char* key, int64_t before, int64_t now) {
      if (before == now) return;
      put(root_, "distributed." + std::string(key), now);
      out_.sizes.push_back(std::string(key) + " " + std::to_string(now) + " (of " +
                           std::to_string(before) + ")");
    };
    told("tp_size", was.tp, s.tp);
    told("cp_size", was.cp, s.cp);
    told("pp_size", was.pp, s.pp);
    told("ep_size", was.ep, s.ep);
    told("dp_replicate_size", was.dp_replicate, s.dp_replicate);
    if (Value* distributed = find(root_, "distributed")) erase(*distributed, "dp_size");
  }

  void count_stages() {
    if (structure_.sizes.pp < 2) return;
    const std::string schedule = text::lower(job_.config.shared.pipeline.schedule);
    const bool several = schedule != "1f1b" && schedule != "gpipe";
    structure_.stages = structure_.sizes.pp * (several ? 2 : 1);
    Value* pipeline = find(root_, "distributed.pipeline");
    if (pipeline == nullptr) return;
    for (const char* key : {"pp_batch_size", "pp_seq_len", "layers_per_stage",
                            "first_stage_less_layers", "last_stage_less_layers"})
      erase(*pipeline, key);
    if (find(root_, "distributed.pipeline.module_fqns_per_model_part") != nullptr &&
        job_.config.table("distributed.pipeline").is_given("module_fqns_per_model_part")) {
      out_.not_proven.emplace_back(
          "distributed.pipeline.module_fqns_per_model_part: stages are cut as the engine does");
    }
    erase(*pipeline, "module_fqns_per_model_part");
  }

  int64_t rows() const {
    if (structure_.sizes.pp > 1) return 1;
    return std::min<int64_t>(job_.config.table("step_scheduler").get_int("local_batch_size"), 2);
  }
  // No axis has as many ranks, so that a factor tells which of them it is.
  int64_t micro_batches(int64_t world) const {
    const ParallelSizes& s = structure_.sizes;
    const int64_t shards = dp_of(world) / std::max<int64_t>(s.dp_replicate, 1);
    // Schedules take them by the stages, and fill themselves with twice as many.
    const int64_t by = s.pp > 1 ? s.pp : 1;
    int64_t out = 2 * by;
    while (out == s.tp || out == s.cp || out == s.ep || out == s.dp_replicate || out == shards)
      out += by;
    return out;
  }

  int64_t length_of(const Sizes& sizes) const {
    const int64_t together = std::lcm(2 * structure_.sizes.cp, structure_.sizes.tp);
    return sizes.length ? 11 : (12 + together - 1) / together * together;
  }

  int64_t dp_of(int64_t world) const {
    const ParallelSizes& s = structure_.sizes;
    return world / (s.tp * s.cp * s.pp);
  }

  std::string model_text(const Sizes& sizes) const {
    return json::serialize(model_->small(structure_, sizes));
  }

  void hand_model(const Sizes& sizes) const {
    if (model_) base::hand_files({{kModelFile, model_text(sizes)}});
  }

  std::string ranks_toml(const Sizes& sizes, int64_t world) {
    hand_model(sizes);
    Value root = root_;
    put(root, "dataset.seq_len", length_of(sizes));
    put(root, "step_scheduler.local_batch_size", rows());
    put(root, "step_scheduler.global_batch_size", rows() * micro_batches(world) * dp_of(world));
    put(root, "step_scheduler.max_steps", 1000);
    if (structure_.sizes.pp > 1) put(root, "distributed.pipeline.pp_microbatch_size", rows());
    return text_of(root);
  }

  // One process: nothing of how ranks share the work, and the strategy that jobs have by default.
  std::string alone_toml(const Sizes& sizes, int64_t world) {
    hand_model(sizes);
    Value root = root_;
    std::set<std::string> kept = {"autocast_dtype", "mp_policy", "moe"};
    if (Value* distributed = find(root, "distributed"))
      std::erase_if(distributed->entries,
                    [&](const config::Entry& entry) { return !kept.contains(entry.key); });
    put(root, "dataset.seq_len", length_of(sizes));
    put(root, "step_scheduler.local_batch_size", rows());
    put(root, "step_scheduler.global_batch_size", rows() * micro_batches(world) * dp_of(world));
    put(root, "step_scheduler.max_steps", 1000);
    return text_of(root);
  }

  // The smallest world that can be planned.
  std::optional<plan::JobPlan> try_worlds(const Sizes& sizes, std::optional<Error>* why) {
    const int64_t fixed = fixed_ranks();
    if (world_ > 0) {
      out_.ranks = world_;
      return planned(ranks_toml(sizes, world_), world_, why);
    }
    // Two shards are an axis; some jobs need more of them, and some have none.
    std::vector<int64_t> tries;
    for (int64_t shards = 2; shards * fixed <= kMostRanks; ++shards) tries.push_back(shards);
    tries.push_back(1);
    for (const int64_t shards : tries) {
      out_.ranks = shards * fixed;
      if (std::optional<plan::JobPlan> plan =
              planned(ranks_toml(sizes, out_.ranks), out_.ranks, why))
        return plan;
    }
    return std::nullopt;
  }

  void finish(const Sizes& sizes, const plan::JobPlan& plan) {
    out_.toml = ranks_toml(sizes, out_.ranks);
    out_.alone = alone_toml(sizes, out_.ranks);
    if (model_) {
      out_.files[kModelFile] = model_text(sizes);
      const std::vector<std::string> cut =
          cut_sizes(model_->whole(), model_->small(structure_, sizes));
      out_.sizes.insert(out_.sizes.end(), cut.begin(), cut.end());
    }
    out_.rows = rows();
    out_.length = length_of(sizes);
    if (plan.outline) out_.model = plan.outline->architecture;
    for (const plan::AxisView& axis : plan::axes_of(plan))
      if (!axis.flattened && axis.size > 1)
        out_.axes.emplace_back(axis.name, std::to_string(axis.size));
  }

  const plan::Job& job_;
  int64_t world_;
  Value root_;
  std::optional<ModelFile> model_;
  Structure structure_;
  Shrunk out_;
};

}  // namespace

Shrunk shrink(const plan::Job& job, int64_t world) { return Shrinking(job, world).run(); }

}  // namespace meshwright::prove
