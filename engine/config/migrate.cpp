// Which program a configuration is of, and what is the same for both.
#include "engine/config/migrate.h"

#include <algorithm>
#include <boost/json/array.hpp>

#include "engine/config/migrator.h"
#include "engine/config/yaml.h"
#include "sdk/base/words.h"

namespace meshwright::config {
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
  const bool overlaps = async != nullptr && is_true(async->value);
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
      if (leaf != nullptr && is_true(leaf->value) && !leaf->used) {
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

// `local_batch_size`: their key.
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
    if (const Leaf* leaf = m.find(compile); leaf != nullptr && is_false(leaf->value))
      m.drop_table("compile.");
  m.choose("gradient_checkpointing", "distributed.activation_checkpointing",
           [](const Value& v) { return Migrator::Choice(Value(is_true(v) ? "full" : "none")); });
  for (const char* name : {"tf32", "allow_tf32"})
    m.choose(name, "run.float32_matmul_precision", [](const Value& v) {
      return Migrator::Choice(Value(is_true(v) ? "high" : "highest"));
    });
}

}  // namespace

Migration migrate(std::string_view text, const std::string& file, const PluginSchemas& plugins) {
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
        .help(ends(".py") ? "a configuration in Python is a program, which is not run here: write "
                            "its values as TOML with the tables of torchtitan, [training] "
                            "steps = 1000, and name that file"
                          : "give the file the ending of what is in it");
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
  Migrator migrator(std::move(leaves), titan ? "torchtitan" : "Automodel", plugins);
  titan ? from_torchtitan(migrator) : from_automodel(migrator);
  sequence_parallel(migrator, titan);
  both(migrator, titan ? "training.local_batch_size" : "step_scheduler.local_batch_size");
  return migrator.finish();
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
  return {{"program", migration.program},       {"toml", migration.toml},
          {"carried", list(migration.carried)}, {"guessed", list(migration.guessed)},
          {"left", list(migration.left)},       {"missing", list(migration.missing)}};
}

}  // namespace meshwright::config
