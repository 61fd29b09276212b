// The table of foreign.cpp says what each key is here; this file does what a table cannot: values
// that depend on others, defaults of the other program, and the check that the result is a
// configuration.
#include "engine/config/migrate.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>

#include "engine/config/describe.h"
#include "engine/config/foreign.h"
#include "engine/config/syntax.h"
#include "engine/config/toml_value.h"
#include "engine/config/yaml.h"
#include "sdk/base/words.h"

namespace meshwright::config {
namespace {

using Line = Migration::Line;

struct Leaf {
  std::string key;  // dotted
  Place place;
  Value value;
  bool used = false;
};

Value boolean(bool on) {
  Value out;
  out.kind = Value::Kind::boolean;
  out.boolean = on;
  return out;
}
Value integer(int64_t n) {
  Value out;
  out.kind = Value::Kind::integer;
  out.integer = n;
  return out;
}
Value number(double x) {
  Value out;
  out.kind = Value::Kind::number;
  out.number = x;
  return out;
}

// 0.1 * 3e-4 as a person writes it, without the last digit of a binary product.
Value product(double a, double b) {
  char text[40];
  std::snprintf(text, sizeof text, "%.15g", a * b);
  return number(std::strtod(text, nullptr));
}
bool is_number(const Value& v) {
  return v.kind == Value::Kind::integer || v.kind == Value::Kind::number;
}
double as_number(const Value& v) {
  return v.kind == Value::Kind::integer ? static_cast<double>(v.integer) : v.number;
}
bool is_true(const Value& v) { return v.kind == Value::Kind::boolean && v.boolean; }
bool is_empty(const Value& v) {
  return v.kind == Value::Kind::string && (v.text.empty() || v.text == "none");
}

void flatten(const Value& table, const std::string& prefix, std::vector<Leaf>& out) {
  for (const Entry& entry : table.entries) {
    std::string key = join_key(prefix, entry.key);
    if (entry.value.is_table())
      flatten(entry.value, key, out);
    else
      out.push_back({key, entry.place, entry.value});
  }
}

// What stands in a comment must not end it: words of the other file are quoted there.
std::string one_line(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = ' ';
  return text;
}

// "meta-llama/Llama-3.2-1B", a name on the hub, as the folder into which it is downloaded.
std::string local_folder(const std::string& name) {
  bool hub = std::count(name.begin(), name.end(), '/') == 1 && name[0] != '/' && name[0] != '.' &&
             name[0] != '~';
  return hub ? "models/" + name.substr(name.find('/') + 1) : name;
}

struct Default {
  const char *key, *toml;
};
// What torchtitan does when a file does not say so, where it differs from what is done here.
constexpr Default kTorchtitan[] = {{"optimizer.lr", "8e-4"},
                                   {"lr_scheduler.warmup_steps", "200"},
                                   {"lr_scheduler.decay_type", "\"linear\""},
                                   {"lr_scheduler.min_lr_factor", "0.0"},
                                   {"training.local_batch_size", "8"},
                                   {"training.global_batch_size", "-1"},
                                   {"training.seq_len", "2048"},
                                   {"training.steps", "10000"},
                                   {"activation_checkpoint.mode", "\"selective\""},
                                   {"checkpoint.enable", "false"}};

class Migrator {
 public:
  Migrator(std::vector<Leaf> leaves, bool titan, const std::vector<StrategySchema>& strategies)
      : leaves_(std::move(leaves)),
        titan_(titan),
        strategies_(strategies),
        schemas_(all_schemas(strategies)) {
    out_.program = titan ? "torchtitan" : "Automodel";
  }

  Migration run() {
    if (titan_)
      for (const Default& d : kTorchtitan)
        if (find(d.key) == nullptr) leaves_.push_back({d.key, {}, *parse_toml_value(d.toml)});
    titan_ ? torchtitan() : automodel();
    both();
    for (Leaf& leaf : leaves_)
      if (!leaf.used) plain(leaf);
    check();
    say_missing();
    std::string text = "# Made from a configuration of " + out_.program +
                       " by meshwright config migrate.\nschema = 1\n";
    for (const OptionSchema& schema : schemas_) text += table_text(schema);
    if (!out_.missing.empty()) text += "\n# Still to be said:\n";
    for (const Line& line : out_.missing)
      text += "#   " + one_line(line.key + ": " + line.text) + "\n";
    if (!out_.left.empty()) text += "\n# Not carried over:\n";
    for (const Line& line : out_.left)
      text += "#   " + one_line(line.key + " = " + line.value + ": " + line.text) + "\n";
    out_.toml = std::move(text);
    return std::move(out_);
  }

 private:
  struct Set {
    Value value;
    const Leaf* from;
    std::string why;  // not empty: a guess
  };

  Leaf* find(std::string_view key) {
    for (Leaf& leaf : leaves_)
      if (leaf.key == key) return &leaf;
    return nullptr;
  }
  // The leaf, which then counts as dealt with.
  Leaf* take(std::string_view key) {
    Leaf* leaf = find(key);
    if (leaf != nullptr) leaf->used = true;
    return leaf;
  }
  static std::string shown(const Value& value) {
    constexpr size_t kMost = 77;
    std::string text = to_toml(value);
    if (text.size() <= kMost + 3) return text;
    size_t end = kMost;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80)
      --end;  // not within a character
    return text.substr(0, end) + "...";
  }
  // The strategy whose name, or another name of it, a class like FSDP2Manager begins with; empty:
  // none.
  std::string strategy_of_class(const std::string& path) const {
    auto letters = [](std::string_view text) {
      std::string out;
      for (char c : text::normal(text))
        if (c != '_') out += c;
      return out;
    };
    std::string name = letters(path.substr(path.rfind('.') + 1)), best;
    size_t longest = 0;
    for (const StrategySchema& s : strategies_) {
      std::vector<std::string> names = s.aliases;
      names.push_back(s.strategy);
      for (const std::string& known : names)
        if (std::string word = letters(known); word.size() > longest && name.starts_with(word)) {
          longest = word.size();
          best = s.strategy;
        }
    }
    return best;
  }
  void left(const Leaf& leaf, const std::string& why) {
    out_.left.push_back({leaf.key, leaf.place.line, shown(leaf.value), why});
  }
  // Where two keys of theirs are one of ours, the first one counts.
  void set(const std::string& key, Value value, const Leaf& from, const std::string& why = {}) {
    if (auto [at, added] = set_.try_emplace(key, Set{std::move(value), &from, why});
        !added && at->second.from != &from)
      left(from, key + " is already set by " + at->second.from->key);
  }

  const OptionSchema* owner_of(const std::string& key) const {
    size_t dot = key.rfind('.');
    for (const OptionSchema& schema : schemas_)
      if (dot != std::string::npos && schema.table == key.substr(0, dot) &&
          schema.find(key.substr(dot + 1)) != nullptr)
        return &schema;
    return nullptr;
  }

  // What has the same name here, or stands in the table of names.
  void plain(Leaf& leaf) {
    leaf.used = true;
    if (owner_of(leaf.key) != nullptr) return set(leaf.key, leaf.value, leaf, implied(leaf));
    if (leaf.key.starts_with("distributed.")) {
      // The flat form, and older names: the loader knows them, and the table they belong to.
      std::string name = leaf.key.substr(leaf.key.rfind('.') + 1), strategy = "fsdp2";
      if (const Leaf* chosen = find("distributed.strategy"); chosen != nullptr)
        strategy = text::normal(chosen->value.text);
      for (const StrategySchema& s : strategies_)
        if (s.strategy == strategy && s.schema.find(name) != nullptr)
          return set(s.schema.table + "." + name, leaf.value, leaf);
    }
    std::string last = leaf.key.substr(leaf.key.rfind('.') + 1);
    if (last == "_target_" || last == "_recursive_" || last == "_convert_")
      return left(leaf, "names Python code, which is not run here");
    const ForeignName* known = find_foreign(leaf.key);
    if (known == nullptr)
      known = find_foreign(std::string_view(leaf.key).substr(0, leaf.key.find('.')));
    if (known == nullptr) {
      std::vector<std::string> names;
      for (const OptionSchema& schema : schemas_)
        for (const meshwright_option* option : schema.options)
          names.push_back(schema.table + "." + option->name);
      std::string near = nearest_name(leaf.key, names);
      return left(leaf, near.empty() ? "nothing here is known to correspond"
                                     : "not known; the nearest key is " + near);
    }
    if (is_empty(leaf.value) && known->carry != Carry::as_is) return;  // nothing was asked for
    std::string note = known->note, key = known->key;
    if (key.empty() && leaf.value.kind == Value::Kind::boolean && !leaf.value.boolean)
      return;  // switched off there
    if (known->carry == Carry::as_is) return set(key, leaf.value, leaf, implied(leaf));
    if (known->carry == Carry::lower) {
      leaf.value.text = text::normal(leaf.value.text);
      return set(key, leaf.value, leaf);
    }
    if (known->carry == Carry::degree && leaf.value.kind == Value::Kind::integer)
      return set(key, leaf.value.integer < 1 ? Value("auto") : leaf.value, leaf);
    if (known->carry == Carry::seconds && is_number(leaf.value))
      return set(key, number(as_number(leaf.value) / 60), leaf);
    left(leaf, key.empty() ? note : "see " + key + (note.empty() ? "" : ": " + note));
  }
  std::string implied(const Leaf& leaf) const {
    return leaf.place.line == 0 ? out_.program + "'s default" : "";
  }

  // choose(value): what it is here, or nothing. `why` for a value that is a guess.
  template <class Choose>
  void choose(const char* theirs, const char* ours, Choose&& choose, const std::string& why = {}) {
    Leaf* leaf = take(theirs);
    if (leaf == nullptr) return;
    std::optional<Value> value = choose(leaf->value);
    if (value)
      set(ours, std::move(*value), *leaf, why.empty() ? implied(*leaf) : why);
    else if (!is_empty(leaf->value))
      left(*leaf, std::string("no counterpart for this value; see ") + ours);
  }
  using Choice = std::optional<Value>;

  void torchtitan() {
    Leaf* hf = take("checkpoint.initial_load_in_hf");
    if (Leaf* assets = take("model.hf_assets_path");
        assets != nullptr && !is_empty(assets->value)) {
      if (hf != nullptr && is_true(hf->value))
        set("model.pretrained", Value(assets->value.text), *assets);
      else
        set("model.config", Value(assets->value.text + "/config.json"), *assets,
            "torchtitan builds its flavour of a model; this is the folder's");
    }
    Leaf *b1 = take("optimizer.beta1"), *b2 = take("optimizer.beta2");
    if (b1 != nullptr || b2 != nullptr) {
      Value betas;
      betas.kind = Value::Kind::list;
      betas.items = {b1 != nullptr ? b1->value : number(0.9),
                     b2 != nullptr ? b2->value : number(0.95)};
      set("optimizer.betas", betas, b1 != nullptr ? *b1 : *b2);
    }
    choose("lr_scheduler.decay_type", "lr_scheduler.lr_decay_style", [](const Value& v) {
      return v.text == "linear" || v.text == "cosine" ? Choice(v) : std::nullopt;
    });
    if (Leaf* ratio = take("lr_scheduler.decay_ratio");
        ratio != nullptr && is_number(ratio->value)) {
      set_.erase("lr_scheduler.lr_decay_style");
      set("lr_scheduler.lr_decay_style", Value("wsd"), *ratio,
          "\"wsd\" decays over the last 10% of the steps, whatever the ratio there");
    }
    Leaf *factor = take("lr_scheduler.min_lr_factor"), *lr = find("optimizer.lr");
    if (factor != nullptr && lr != nullptr && is_number(factor->value) && is_number(lr->value))
      set("lr_scheduler.min_lr", product(as_number(factor->value), as_number(lr->value)), *factor,
          implied(*factor));
    Leaf *local = find("training.local_batch_size"),
         *replicate = find("parallelism.data_parallel_replicate_degree"),
         *shard = take("parallelism.data_parallel_shard_degree"),
         *global = take("training.global_batch_size");
    auto count = [](const Leaf* leaf, int64_t fallback) {
      return leaf != nullptr && leaf->value.kind == Value::Kind::integer &&
                     leaf->value.integer > 0 && leaf->value.integer < 1 << 20
                 ? leaf->value.integer
                 : fallback;
    };
    if (shard != nullptr)
      set("distributed.dp_size",
          count(shard, 0) > 0 ? integer(count(shard, 1) * count(replicate, 1)) : Value("auto"),
          *shard);
    if (count(global, 0) > 0)
      set("step_scheduler.global_batch_size", global->value, *global);
    else
      set("step_scheduler.global_batch_size",
          integer(count(local, 8) * count(replicate, 1) * count(shard, 1)), *global,
          "it means local_batch_size times the data-parallel ranks: set it for your number of "
          "ranks");
    choose("parallelism.fsdp_reshard_after_forward", "distributed.fsdp2.reshard_after_forward",
           [](const Value& v) {
             return v.text == "default"                       ? Choice(Value("auto"))
                    : v.text == "always" || v.text == "never" ? Choice(boolean(v.text == "always"))
                                                              : std::nullopt;
           });
    choose("parallelism.pipeline_parallel_schedule_csv", "distributed.pipeline.pp_schedule_csv",
           [](const Value& v) { return is_empty(v) ? std::nullopt : Choice(v); });
    choose("parallelism.expert_parallel_comm_backend", "distributed.moe.dispatcher",
           [](const Value& v) {
             return v.text == "standard" ? Choice(Value("all_to_all")) : std::nullopt;
           });
    choose("training.enable_cpu_offload", "distributed.fsdp2.offload_policy",
           [](const Value& v) { return Choice(Value(is_true(v) ? "cpu" : "none")); });
    choose("activation_checkpoint.mode", "distributed.activation_checkpointing",
           [](const Value& v) {
             return v.text == "none" || v.text == "full" || v.text == "selective" ? Choice(v)
                                                                                  : std::nullopt;
           });
    choose("checkpoint.last_save_in_hf", "checkpoint.export",
           [](const Value& v) { return Choice(Value(is_true(v) ? "final" : "none")); });
    choose("checkpoint.async_mode", "checkpoint.async",
           [](const Value& v) { return Choice(boolean(v.text != "disabled")); });
    choose("checkpoint.load_step", "checkpoint.resume", [](const Value& v) {
      return v.kind == Value::Kind::integer && v.integer == -1 ? Choice(Value("auto"))
                                                               : std::nullopt;
    });
    saves(take("checkpoint.enable"), take("checkpoint.interval"));
    if (Leaf* old = take("checkpoint.enable_checkpoint"); old != nullptr) saves(old, nullptr);
    choose("checkpoint.keep_latest_k", "checkpoint.keep", [](const Value& v) {
      return v.kind == Value::Kind::integer && v.integer > 0 ? Choice(v) : std::nullopt;
    });
    Leaf* data = take("training.dataset_path");
    if (data != nullptr && !is_empty(data->value))
      set("dataset.path", data->value, *data,
          "a folder or file of text; dataset.kind says what is in it");
    Leaf* on = take("validation.enable");
    Leaf* valid = take("validation.dataset_path");
    bool validates =
        on != nullptr && is_true(on->value) && valid != nullptr && !is_empty(valid->value);
    if (validates)
      set("validation_dataset.path", valid->value, *valid,
          "a folder or file of text; validation_dataset.kind says what is in it");
    for (const auto& [theirs, ours] :
         {std::pair("validation.freq", "validation_dataset.every_steps"),
          {"validation.steps", "validation_dataset.num_batches"},
          {"validation.seq_len", "validation_dataset.seq_len"}})
      if (Leaf* leaf = take(theirs); leaf != nullptr) {
        if (validates)
          set(ours, leaf->value, *leaf);
        else
          left(*leaf, std::string("it is ") + ours + " once validation_dataset.path is set");
      }
    if (Leaf* leaf = take("validation.dataset"); leaf != nullptr)
      left(*leaf, "data of the hub is not read; validation_dataset.path names files");
    if (Leaf* leaf = take("training.dataset"); leaf != nullptr && data == nullptr)
      left(*leaf, "data of the hub is not read; dataset.path names files");
  }

  void saves(Leaf* enable, Leaf* every) {
    if (enable != nullptr && enable->value.kind == Value::Kind::boolean && !enable->value.boolean)
      set("checkpoint.every_steps", integer(0), *enable,
          enable->place.line == 0 ? implied(*enable) + "; the last step is always saved"
                                  : "the last step is always saved");
    else if (every != nullptr)
      set("checkpoint.every_steps", every->value, *every);
  }

  void automodel() {
    Leaf *target = take("model._target_"), *name = take("model.pretrained_model_name_or_path");
    auto download = [](const std::string& hub) {
      return local_folder(hub) == hub
                 ? std::string()
                 : "download it first: hf download " + hub + " --local-dir " + local_folder(hub);
    };
    if (name != nullptr && name->value.kind == Value::Kind::string) {
      bool random = target != nullptr && target->value.text.ends_with("from_config");
      std::string folder = local_folder(name->value.text);
      set(random ? "model.config" : "model.pretrained",
          Value(random ? folder + "/config.json" : folder), *name, download(name->value.text));
    }
    for (const char* key : {"model.config.pretrained_model_name_or_path",
                            "model.config.name_or_path", "model.config"})
      if (Leaf* config = take(key); config != nullptr &&
                                    config->value.kind == Value::Kind::string &&
                                    !set_.contains("model.config"))
        set("model.config",
            Value(local_folder(config->value.text) +
                  (config->value.text.ends_with(".json") ? "" : "/config.json")),
            *config, download(config->value.text));
    if (Leaf* optimizer = take("optimizer._target_"); optimizer != nullptr) {
      std::string kind = optimizer->value.text.substr(optimizer->value.text.rfind('.') + 1);
      if (kind == "AdamW")
        set("optimizer.name", Value("adamw"), *optimizer);
      else if (kind == "SGD")
        set("optimizer.name", Value("sgd"), *optimizer);
      else
        set("optimizer.name", Value("adamw"), *optimizer, "there are adamw and sgd here");
    }
    if (Leaf* strategy = take("distributed._target_"); strategy != nullptr) {
      std::string ours = strategy_of_class(strategy->value.text);
      if (ours.empty())
        left(*strategy, "names a class that no strategy here is named for");
      else if (find("distributed.strategy") == nullptr)
        set("distributed.strategy", Value(ours), *strategy, "after the name of the class");
    }
    saves(take("checkpoint.enabled"), take("step_scheduler.ckpt_every_steps"));
    choose("checkpoint.save_consolidated", "checkpoint.export", [](const Value& v) {
      return v.kind == Value::Kind::boolean           ? Choice(Value(v.boolean ? "final" : "none"))
             : v.text == "final" || v.text == "every" ? Choice(v)
                                                      : std::nullopt;
    });
    choose(
        "checkpoint.checkpoint_dir", "run.dir",
        [](const Value& v) { return Choice(Value(v.text)); },
        "checkpoints lie in <run.dir>/<run.name>/checkpoints");
    dataset("dataset");
    bool validation = dataset("validation_dataset");
    choose("packed_sequence.packed_sequence_size", "dataset.seq_len", [&](const Value& v) {
      bool packs = v.kind == Value::Kind::integer && v.integer > 0 &&
                   find("dataset.seq_length") == nullptr && find("dataset.seq_len") == nullptr;
      return packs ? Choice(v) : std::nullopt;
    });
    for (const auto& [theirs, ours] :
         {std::pair("step_scheduler.val_every_steps", "validation_dataset.every_steps"),
          {"validation_dataset.seq_length", "validation_dataset.seq_len"},
          {"validation_dataset.seq_len", "validation_dataset.seq_len"}})
      if (Leaf* leaf = take(theirs); leaf != nullptr) {
        if (validation)
          set(ours, leaf->value, *leaf);
        else
          left(*leaf, std::string("it is ") + ours + " once validation_dataset.path is set");
      }
  }

  // Whether the table's data can be read here.
  bool dataset(const std::string& table) {
    Leaf *target = take(table + "._target_"), *paths = take(table + ".paths");
    if (paths == nullptr) paths = take(table + ".file_pattern");
    if (target == nullptr) return false;
    std::string kind = text::normal(target->value.text.substr(target->value.text.rfind('.') + 1));
    const char* ours = kind.find("megatron") != std::string::npos  ? "megatron"
                       : kind.find("nanogpt") != std::string::npos ? "tokens"
                       : kind.find("mock") != std::string::npos    ? "mock"
                                                                   : nullptr;
    if (ours == nullptr) {
      left(*target, "data of the hub and for conversations is not read; " + table +
                        ".path names text or tokens on this machine");
      return false;
    }
    set(table + ".kind", Value(ours), *target, "after the name of the class");
    if (paths != nullptr && paths->value.kind == Value::Kind::list &&
        paths->value.items.size() == 1) {
      Value only = paths->value.items[0];
      paths->value = std::move(only);
    }
    if (paths != nullptr && paths->value.kind == Value::Kind::string)
      set(table + ".path", paths->value, *paths);
    else if (paths != nullptr)
      left(*paths, table + ".path is one file, folder or pattern");
    return paths != nullptr || std::string_view(ours) == "mock";
  }

  void both() {
    choose("optimizer.name", "optimizer.name", [](const Value& v) {
      std::string name = text::normal(v.text);
      return name == "adamw" || name == "sgd" ? Choice(Value(name)) : std::nullopt;
    });
    // Both programs send a local batch through the pipeline at once; here its size is a key of its
    // own.
    Leaf* micro = find("distributed.pipeline.pp_microbatch_size");
    if (micro == nullptr) micro = find("parallelism.pipeline_parallel_microbatch_size");
    const Leaf* local =
        find(titan_ ? "training.local_batch_size" : "step_scheduler.local_batch_size");
    if (micro != nullptr && local != nullptr &&
        find("distributed.pipeline.pp_batch_size") == nullptr)
      set("distributed.pipeline.pp_batch_size", local->value, *local,
          "a local batch passes the pipeline at once");
    choose("gradient_checkpointing", "distributed.activation_checkpointing",
           [](const Value& v) { return Choice(Value(is_true(v) ? "full" : "none")); });
  }

  std::string table_text(const OptionSchema& schema) {
    std::string body;
    for (const meshwright_option* option : schema.options) {
      auto found = set_.find(schema.table + "." + option->name);
      if (found == set_.end()) continue;
      const auto& [key, set] = *found;
      body += std::string(option->name) + " = " + to_toml(set.value) +
              (set.why.empty() ? "" : "  # guessed: " + one_line(set.why)) + "\n";
      bool theirs = set.from->place.line > 0;
      Line line{set.from->key, set.from->place.line, theirs ? shown(set.from->value) : "not said",
                key + " = " + to_toml(set.value)};
      if (set.why.empty()) {
        out_.carried.push_back(std::move(line));
      } else {
        line.text += ": " + set.why;
        out_.guessed.push_back(std::move(line));
      }
    }
    return body.empty() ? "" : "\n[" + schema.table + "]\n" + body;
  }

  // What the loader refuses is left out, with its words.
  void check() {
    for (size_t round = 0, most = set_.size() + 1; round < most; ++round) {
      std::string text;
      for (const OptionSchema& schema : schemas_) {
        std::string body;
        for (const meshwright_option* option : schema.options)
          if (auto found = set_.find(schema.table + "." + option->name); found != set_.end())
            body += std::string(option->name) + " = " + to_toml(found->second.value) + "\n";
        if (!body.empty()) text += "[" + schema.table + "]\n" + body;
      }
      Diagnostics diagnostics;
      LoadOptions options;
      options.environment = [](const std::string&) { return std::nullopt; };
      Source source = Source::parse(text, options, diagnostics);
      std::string strategy = text::normal(source.strategy());
      if (diagnostics.ok()) resolve(source, strategies_, strategy, diagnostics);
      if (diagnostics.ok()) return;
      bool removed = false;
      for (const Error& error : diagnostics.errors())
        for (auto it = set_.begin(); it != set_.end(); ++it)
          if (error.key() == it->first || error.key().starts_with(it->first + ".")) {
            left(*it->second.from, "not taken as " + it->first + " = " + shown(it->second.value) +
                                       ": " + error.message());
            set_.erase(it);
            removed = true;
            break;
          }
      if (removed) continue;
      for (const Error& error : diagnostics.errors())
        out_.missing.push_back({error.key(), 0, "", error.message()});
      return;
    }
  }

  void say_missing() {
    if (!set_.contains("model.config") && !set_.contains("model.pretrained"))
      out_.missing.push_back(
          {"model.config", 0, "",
           "a Hugging Face config.json, or model.pretrained, a folder with weights"});
    auto kind = set_.find("dataset.kind");
    bool mock = kind != set_.end() && kind->second.value.text == "mock";
    if (!set_.contains("dataset.path") && !mock)
      out_.missing.push_back({"dataset.path", 0, "",
                              "files of text or tokens on this machine, and dataset.kind; "
                              "`meshwright tokenize` makes tokens"});
    if (!set_.contains("step_scheduler.max_steps"))
      out_.missing.push_back({"step_scheduler.max_steps", 0, "",
                              "the length of the run in steps; 200 unless it is set"});
  }

  std::vector<Leaf> leaves_;
  bool titan_;
  const std::vector<StrategySchema>& strategies_;
  std::vector<OptionSchema> schemas_;
  std::map<std::string, Set> set_;
  Migration out_;
};

}  // namespace

Migration migrate(std::string_view text, const std::string& file,
                  const std::vector<StrategySchema>& strategies) {
  auto ends = [&](const char* end) { return text::normal(file).ends_with(end); };
  std::vector<Leaf> leaves;
  bool titan = ends(".toml");
  if (titan) {
    Diagnostics diagnostics;
    std::optional<Value> root = parse_toml(text, file, diagnostics);
    if (!root) {
      Error found = diagnostics.errors().front(),
            error(ErrorCode::bad_foreign_config, file + ": no valid TOML: " + found.message());
      error.at(found.origin());
      for (const std::string& help : found.helps()) error.help(help);
      throw error;
    }
    flatten(*root, "", leaves);
  } else if (ends(".yaml") || ends(".yml")) {
    flatten(parse_yaml(text, file), "", leaves);
  } else {
    throw Error(ErrorCode::bad_foreign_config,
                file + ": a file of torchtitan ends in .toml, one of Automodel in .yaml")
        .help("give the file the ending of what is in it");
  }
  auto has = [&](std::string_view table) {
    return std::any_of(leaves.begin(), leaves.end(),
                       [&](const Leaf& leaf) { return leaf.key.starts_with(table); });
  };
  bool known =
      titan ? has("training.") || has("parallelism.") || has("job.") || has("lr_scheduler.") ||
                  has("optimizer.")
            : has("step_scheduler.") || has("model.") || has("distributed.") || has("optimizer.");
  if (!known)
    throw Error(ErrorCode::bad_foreign_config,
                file + ": none of the tables that " + (titan ? "torchtitan" : "Automodel") + " has")
        .at({Origin::Source::file, file, 1, 1})
        .help(titan ? "torchtitan's tables are [training], [parallelism], [optimizer], ..."
                    : "Automodel's tables are step_scheduler, model, distributed, ...");
  if (titan && (has("step_scheduler.") || has("distributed.")))
    throw Error(ErrorCode::bad_foreign_config,
                file + ": this is a configuration of Meshwright already")
        .help("meshwright validate " + file);
  return Migrator(std::move(leaves), titan, strategies).run();
}

boost::json::object migration_json(const Migration& migration) {
  namespace json = boost::json;
  auto list = [](const std::vector<Line>& lines) {
    json::array out;
    for (const Line& line : lines)
      out.push_back({{"key", line.key},
                     {"line", line.line > 0 ? json::value(line.line) : json::value(nullptr)},
                     {"value", line.value},
                     {"text", line.text}});
    return out;
  };
  return {{"program", migration.program},       {"toml", migration.toml},
          {"carried", list(migration.carried)}, {"guessed", list(migration.guessed)},
          {"left", list(migration.left)},       {"missing", list(migration.missing)}};
}

}  // namespace meshwright::config
