// What cases of migrations share: a migrated file, read by the loader itself, and what is told of
// it.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "apps/migrate/migrate.h"
#include "engine/config/config.h"
#include "engine/config/describe.h"
#include "engine/config/source.h"
#include "engine/config/sources.h"
#include "engine/config/toml_value.h"
#include "plugins/fully_sharded/options.h"
#include "plugins/jsonl/options.h"
#include "plugins/jsonl/text_options.h"
#include "sdk/base/words.h"

namespace migrate_test {

using namespace meshwright;
using namespace meshwright::config;

inline PluginSchemas strategies() {
  PluginSchemas out{
      {{"fsdp2", {}, make_schema("distributed.fsdp2", "fsdp2", kFullyShardedOptions.declared)}}};
  for (const char* table : {"dataset.jsonl", "validation_dataset.jsonl"})
    out.components.push_back({make_schema(table, "jsonl", jsonl::kOptions), true});
  for (const char* table : {"dataset.text", "validation_dataset.text"})
    out.components.push_back({make_schema(table, "jsonl", jsonl::kTextOptions), true});
  return out;
}

inline const Migration::Line* find(const std::vector<Migration::Line>& lines,
                                   const std::string& key) {
  auto found =
      std::find_if(lines.begin(), lines.end(), [&](const auto& line) { return line.key == key; });
  return found == lines.end() ? nullptr : &*found;
}

inline bool says(const std::vector<Migration::Line>& lines, const std::string& key,
                 const std::string& part) {
  const Migration::Line* line = find(lines, key);
  return line != nullptr && line->text.find(part) != std::string::npos;
}

// The result is read by the loader itself.
inline Config loaded(const Migration& migration) {
  Diagnostics diagnostics;
  LoadOptions options;
  options.file = "new.toml";
  Source source = Source::parse(migration.toml, options, diagnostics);
  Config config = resolve(source, strategies(), "fsdp2", diagnostics);
  for (const Error& error : diagnostics.errors()) FAIL_CHECK(error.what());
  return config;
}

inline std::string value(const Config& config, const std::string& key) {
  const size_t dot = key.rfind('.');
  return to_toml(config.table(key.substr(0, dot)).value(key.substr(dot + 1)));
}

// The keys of a table that are set: "name = \"a\", epochs = 1".
inline std::string given_keys(const Options& table) {
  std::vector<std::string> keys;
  for (const meshwright_option* option : table.schema().options)
    if (table.is_given(option->name))
      keys.push_back(std::string(option->name) + " = " + to_toml(table.value(option->name)));
  return text::join(keys, ", ");
}

inline std::vector<std::string> listed(const Config& config, const std::string& list) {
  std::vector<std::string> out;
  for (const Options& one : config.list(list)) out.push_back(given_keys(one));
  return out;
}

// What sources of lists say in tables below themselves, each behind the source's name.
inline std::vector<std::string> own_options(const Config& config) {
  std::vector<std::string> out;
  for (const char* list : {kMixTable, kSetTable})
    for (const auto& [name, tables] : lists_below_tables(config, list))
      for (size_t i = 0; i < tables->size(); ++i)
        if (const std::string keys = given_keys((*tables)[i]); !keys.empty())
          out.push_back(config.list(list)[i].get_string("name") + ": " + keys);
  return out;
}

struct Expected {
  const char *key, *value;
  std::optional<bool> guessed = {};  // whether a comment says that it is a guess
};

inline void check_values(const Migration& done, const std::vector<Expected>& rows) {
  INFO(done.toml);
  const Config config = loaded(done);
  for (const Expected& row : rows) {
    CAPTURE(row.key);
    CHECK(value(config, row.key) == row.value);
    if (!row.guessed) continue;
    const std::string name = std::string(row.key) + " = ";
    CHECK(*row.guessed == std::any_of(done.guessed.begin(), done.guessed.end(),
                                      [&](const auto& l) { return l.text.starts_with(name); }));
  }
}

inline Migration of_toml(const std::string& text) { return migrate(text, "a.toml", strategies()); }
inline Migration of_yaml(const std::string& text) { return migrate(text, "a.yaml", strategies()); }

constexpr const char* kAxolotlJob = R"(base_model: org/a-model-1B
datasets:
  - path: data/rows.jsonl
    type: chat_template
    field_messages: conversations
    message_property_mappings: {role: from, content: value}
    train_on_eos: turn
val_set_size: 0.1
output_dir: ./outputs/mine
sequence_len: 4096
sample_packing: true
adapter: qlora
load_in_4bit: true
lora_r: 32
lora_alpha: 16
lora_dropout: 0.05
lora_target_linear: true
micro_batch_size: 2
gradient_accumulation_steps: 8
num_epochs: 3
optimizer: adamw_bnb_8bit
lr_scheduler: cosine
learning_rate: 2e-4
cosine_min_lr_ratio: 0.1
warmup_ratio: 0.1
weight_decay: 0.01
bf16: auto
tf32: true
gradient_checkpointing: true
saves_per_epoch: 2
wandb_name:
liger_rope: true
teleport: 3
)";

}  // namespace migrate_test
