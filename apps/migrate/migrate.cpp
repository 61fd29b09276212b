// Which program a configuration is of, by what is in it, and what is the same for all.
#include "apps/migrate/migrate.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <charconv>
#include <cmath>
#include <iterator>
#include <span>
#include <string>
#include <string_view>

#include "apps/migrate/migrator.h"
#include "engine/config/source.h"
#include "engine/config/toml_value.h"
#include "sdk/base/files/utf8.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/words.h"

namespace meshwright::config {

namespace {

// YAML as the values of a configuration, each with its place.

constexpr int kMostValues = 20000;  // aliases counted each time they are used

Place place_of(const YAML::Mark& mark) {
  if (mark.is_null()) return {};
  return {Origin::Source::file, mark.line + 1, mark.column + 1};
}

class Reader {
 public:
  explicit Reader(const std::string& file) : file_(file) {}

  Error refuse(const std::string& what, const Place& place) const {
    return Error(ErrorCode::bad_foreign_config, file_ + ": " + what)
        .at({Origin::Source::file, file_, place.line, place.column});
  }

  Value read(const YAML::Node& node, int depth) {
    Place place = place_of(node.Mark());
    if (depth > kMaxDepth)
      throw refuse("values are nested deeper than " + std::to_string(kMaxDepth) + " levels", place);
    if (++values_ > kMostValues)
      throw refuse(
          "more than " + std::to_string(kMostValues) + " values, counting each use of an alias",
          place);
    Value out;
    out.place = place;
    switch (node.Type()) {
      case YAML::NodeType::Undefined:
      case YAML::NodeType::Null:
        out.kind = Value::Kind::string;
        out.text = "none";
        break;
      case YAML::NodeType::Scalar:
        scalar(node, out);
        break;
      case YAML::NodeType::Sequence:
        out.kind = Value::Kind::list;
        for (const YAML::Node& item : node) out.items.push_back(read(item, depth + 1));
        break;
      case YAML::NodeType::Map:
        map(node, out, depth);
        break;
    }
    return out;
  }

 private:
  void map(const YAML::Node& node, Value& out, int depth) {
    std::vector<Value> merged;
    for (const auto& pair : node) {
      Place place = place_of(pair.first.Mark());
      if (!pair.first.IsScalar()) throw refuse("a key is no plain word", place);
      std::string key = pair.first.Scalar();
      Value value = read(pair.second, depth + 1);
      if (key == "<<" && value.is_table()) {
        merged.push_back(std::move(value));
      } else if (key == "<<" && value.kind == Value::Kind::list) {
        std::move(value.items.begin(), value.items.end(), std::back_inserter(merged));
      } else {
        if (out.find(key) != nullptr)
          throw refuse("the key \"" + key + "\" stands twice in one mapping", place);
        out.entries.push_back({key, place, std::move(value)});
      }
    }
    for (Value& source : merged)
      for (Entry& entry : source.entries)
        if (out.find(entry.key) == nullptr) out.entries.push_back(std::move(entry));
  }

  // A quoted scalar is a string; a plain one what it looks like.
  static void scalar(const YAML::Node& node, Value& out) {
    const std::string& text = node.Scalar();
    const std::string lower = text::lower(text);
    out.kind = Value::Kind::string;
    out.text = text;
    if (node.Tag() == "!") return;
    if (lower == "true" || lower == "yes" || lower == "on" || lower == "false" || lower == "no" ||
        lower == "off") {
      out.kind = Value::Kind::boolean;
      out.boolean = lower == "true" || lower == "yes" || lower == "on";
      return;
    }
    const char *begin = text.data() + (text.starts_with('+') ? 1 : 0),
               *end = text.data() + text.size();
    int64_t integer = 0;
    if (auto [at, failed] = std::from_chars(begin, end, integer);
        failed == std::errc() && at == end) {
      out.kind = Value::Kind::integer;
      out.integer = integer;
      return;
    }
    double number = 0;
    bool digit = text.find_first_of("0123456789") != std::string::npos;
    if (auto [at, failed] = std::from_chars(begin, end, number);
        digit && failed == std::errc() && at == end && std::isfinite(number)) {
      out.kind = Value::Kind::number;
      out.number = number;
    }
  }

  const std::string& file_;
  int values_ = 0;
};

}  // namespace

// The first document of `text`, whose root must be a mapping. Plain words are read as Python's YAML
// and its programs read them: true, yes, 3, 1e-5; null is the string "none". Merge keys (<<) are
// followed. Throws Error(bad_foreign_config) with line and column for what is no YAML, and for what
// is nested deeper or grows larger, by its aliases, than a configuration does.
Value parse_yaml(std::string_view text, const std::string& file) {
  Reader reader(file);
  if (text.size() > kMaxFileBytes)
    throw reader.refuse("larger than " + std::to_string(kMaxFileBytes) + " bytes", {});
  if (base::first_invalid(text) < text.size()) throw reader.refuse("the file is not UTF-8", {});
  try {
    // yaml-cpp itself refuses what is nested so deep that it would exhaust the stack.
    YAML::Node root = YAML::Load(std::string(text));
    Place place = place_of(root.Mark());
    if (!root.IsMap())
      throw reader.refuse("the file holds no keys: a mapping is expected at its top", place);
    return reader.read(root, 0);
  } catch (const YAML::Exception& problem) {
    throw reader.refuse("no valid YAML: " + problem.msg, place_of(problem.mark));
  }
}

namespace {

void flatten(const Value& table, const std::string& prefix, std::vector<Leaf>& out) {
  for (const Entry& entry : table.entries) {
    std::string key = join_key(prefix, entry.key);
    if (entry.value.is_table())
      flatten(entry.value, key, out);
    else
      out.push_back({key, entry.place, entry.value});
  }
}

// Where sequence parallelism is asked for, or comes with tensor parallelism there. It changes no
// value, and experts that ranks divide go without it.
void sequence_parallel(Migrator& m, bool titan) {
  Leaf* said =
      m.find(titan ? "parallelism.enable_sequence_parallel" : "distributed.sequence_parallel");
  Leaf* async = m.find(titan ? "parallelism.enable_async_tensor_parallel"
                             : "distributed.enable_async_tensor_parallel");
  const int64_t
      tp =
          m.count(titan ? "parallelism.tensor_parallel_degree" : "distributed.tp_size").value_or(1),
      ep =
          m.count(titan ? "parallelism.expert_parallel_degree" : "distributed.ep_size").value_or(1);
  const bool overlaps = is_true(async);
  const char* alone = tp == 1 ? "it has no effect without tensor parallelism: tp_size is 1"
                      : m.is_set("model.float8_linear")
                          ? "not made beside model.float8_linear, which is kept: without float8 it "
                            "is distributed.enable_async_tensor_parallel"
                          : nullptr;
  if (overlaps && alone != nullptr) {
    async->used = true;
    m.left(*async, alone);
  }
  const bool wanted = said != nullptr && (is_true(said->value) || overlaps) ? true
                      : said != nullptr                                     ? false
                                                                            : titan || overlaps;
  if (tp <= 1 || !wanted) return;
  if (ep > 1) {
    for (Leaf* leaf : {said, async})
      if (is_true(leaf) && !leaf->used) {
        leaf->used = true;
        m.left(*leaf, "not beside ep_size above 1: routers need whole tokens");
      }
  } else if (said != nullptr && !is_true(said->value)) {
    said->used = true;
    m.set("distributed.sequence_parallel", boolean_value(true), *said,
          "enable_async_tensor_parallel needs it, and sets it there");
  } else if (said == nullptr) {
    m.assume("distributed.sequence_parallel", boolean_value(true),
             titan ? "torchtitan's tensor parallelism cuts the sequence, too"
                   : "enable_async_tensor_parallel needs it, and sets it there");
  }
}

// What is the same for all. `local_batch_size`: their key.
void both(Migrator& m, const char* local_batch_size) {
  m.choose("optimizer.name", "optimizer.name", [](const Value& v) {
    std::string name = text::normal(v.text);
    return name == "adamw" || name == "sgd" ? Migrator::Choice(Value(name)) : std::nullopt;
  });
  // Both programs send a local batch through the pipeline at once; here its size is a key of its
  // own.
  Leaf* micro = m.find("distributed.pipeline.pp_microbatch_size");
  if (micro == nullptr) micro = m.find("parallelism.pipeline_parallel_microbatch_size");
  const Leaf* local = m.find(local_batch_size);
  if (local == nullptr) local = m.find("dataloader.batch_size");
  if (micro != nullptr && local != nullptr &&
      m.find("distributed.pipeline.pp_batch_size") == nullptr)
    m.set("distributed.pipeline.pp_batch_size", local->value, *local,
          "a local batch passes the pipeline at once");
  for (const char* compile : {"compile.enable", "compile.enabled"})
    if (const Leaf* leaf = m.find(compile); is_false(leaf)) m.drop_table("compile.");
  m.choose("gradient_checkpointing", "distributed.activation_checkpointing",
           [](const Value& v) { return Migrator::Choice(Value(is_true(v) ? "full" : "none")); });
  for (const char* name : {"tf32", "allow_tf32"})
    m.choose(name, "run.float32_matmul_precision", [](const Value& v) {
      return Migrator::Choice(Value(is_true(v) ? "high" : "highest"));
    });
}

// A program whose files are read, or whose are known and are not.
struct Program {
  const char* name;
  void (*from)(Migrator& m);  // nullptr: not read
  const char* local_batch_size = "";
};
constexpr Program kTorchtitan = {"torchtitan", from_torchtitan, "training.local_batch_size"},
                  kAutomodel = {"Automodel", from_automodel, "step_scheduler.local_batch_size"},
                  kAxolotl = {"axolotl", from_axolotl}, kTrl = {"TRL", from_trl},
                  kTorchtune = {"torchtune", nullptr}, kFactory = {"LLaMA-Factory", nullptr},
                  kAccelerate = {"accelerate", nullptr}, kDeepSpeed = {"DeepSpeed", nullptr};

// What a file of a program has and those of the programs below it do not: a key, the beginning of
// keys ("training."), or the end of them ("._component_").
struct Mark {
  const char* key;
  const Program* program;
};
constexpr Mark kTomlMarks[] = {{"training.", &kTorchtitan},
                               {"parallelism.", &kTorchtitan},
                               {"job.", &kTorchtitan},
                               {"lr_scheduler.", &kTorchtitan},
                               {"optimizer.", &kTorchtitan}};
constexpr Mark kYamlMarks[] = {{"._component_", &kTorchtune},
                               {"finetuning_type", &kFactory},
                               {"cutoff_len", &kFactory},
                               {"compute_environment", &kAccelerate},
                               {"distributed_type", &kAccelerate},
                               {"zero_optimization.", &kDeepSpeed},
                               {"train_micro_batch_size_per_gpu", &kDeepSpeed},
                               {"base_model", &kAxolotl},
                               {"model_name_or_path", &kTrl},
                               {"per_device_train_batch_size", &kTrl},
                               {"num_train_epochs", &kTrl},
                               {"dataset_name", &kTrl},
                               {"step_scheduler.", &kAutomodel},
                               {"model.", &kAutomodel},
                               {"distributed.", &kAutomodel},
                               {"optimizer.", &kAutomodel}};

bool has(const std::vector<Leaf>& leaves, std::string_view mark) {
  return std::any_of(leaves.begin(), leaves.end(), [&](const Leaf& leaf) {
    return mark.ends_with('.')     ? leaf.key.starts_with(mark)
           : mark.starts_with('.') ? leaf.key.ends_with(mark)
                                   : leaf.key == mark;
  });
}

// TOML begins with a table in brackets or a key and '='; YAML with a key and ':', a list or "---".
bool looks_like_toml(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text::trim(text.substr(at, end - at));
    at = end + 1;
    if (line.empty() || line[0] == '#') continue;
    return line[0] == '[' || line.find('=') < line.find(':');
  }
  return false;
}

// "training" of "training.".
std::string shown_mark(const Mark& mark) {
  const std::string_view key = mark.key;
  const size_t begin = key.starts_with('.') ? 1 : 0;
  return std::string(key.substr(begin, key.size() - begin - (key.ends_with('.') ? 1 : 0)));
}

const Mark& recognised(const std::vector<Leaf>& leaves, bool toml, const std::string& file) {
  const std::span<const Mark> marks = toml ? std::span<const Mark>(kTomlMarks) : kYamlMarks;
  auto error = [&](const std::string& what) {
    return Error(ErrorCode::bad_foreign_config, file + ": " + what)
        .at({Origin::Source::file, file, 1, 1});
  };
  if (toml && (has(leaves, "step_scheduler.") || has(leaves, "distributed.")))
    throw error("this is a configuration of Meshwright already")
        .help("meshwright validate " + file);
  auto found = std::find_if(marks.begin(), marks.end(),
                            [&](const Mark& mark) { return has(leaves, mark.key); });
  if (found == marks.end())
    throw toml ? error("none of the tables that torchtitan has")
                     .help("torchtitan's tables are [training], [parallelism], [optimizer], ...")
               : error("none of the keys that tell a program's configuration by")
                     .help(
                         "Automodel's tables are step_scheduler, model, distributed, ...; "
                         "axolotl's files have base_model, TRL's model_name_or_path");
  if (found->program->from == nullptr)
    throw error(std::string("this is ") + found->program->name + "'s (it has " +
                shown_mark(*found) + "), which is not read")
        .help("torchtitan's TOML, and the YAML of Automodel, axolotl and TRL are read")
        .help("meshwright config new writes a file to begin with");
  return *found;
}

}  // namespace

Migration migrate(std::string_view text, const std::string& file, const PluginSchemas& plugins) {
  if (text::normal(file).ends_with(".py"))
    throw Error(ErrorCode::bad_foreign_config,
                file + ": a configuration in Python is a program, which is not run here")
        .help(
            "write its values as TOML with the tables of torchtitan, [training] steps = 1000, "
            "and name that file");
  std::vector<Leaf> leaves;
  const bool toml = looks_like_toml(text);
  if (toml) {
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
  } else {
    flatten(parse_yaml(text, file), "", leaves);
  }
  const Mark& mark = recognised(leaves, toml, file);
  const Program& program = *mark.program;
  Migrator migrator(std::move(leaves), program.name, plugins);
  program.from(migrator);
  const bool titan = toml;
  if (titan || &program == &kAutomodel) sequence_parallel(migrator, titan);
  both(migrator, program.local_batch_size);
  Migration done = migrator.finish();
  done.known_by = shown_mark(mark);
  return done;
}

boost::json::object migration_json(const Migration& migration) {
  namespace json = boost::json;
  auto list = [](const std::vector<Migration::Line>& lines) {
    json::array out;
    for (const Migration::Line& line : lines)
      out.push_back({{"key", line.key},
                     {"line", line.line > 0 ? json::value(line.line) : json::value(nullptr)},
                     {"value", line.value},
                     {"text", line.text}});
    return out;
  };
  return {{"program", migration.program},
          {"known_by", migration.known_by},
          {"toml", migration.toml},
          {"carried", list(migration.carried)},
          {"guessed", list(migration.guessed)},
          {"left", list(migration.left)},
          {"missing", list(migration.missing)}};
}

}  // namespace meshwright::config
