// The data of Automodel's recipes: what its classes of data sets are here.
#include <algorithm>
#include <filesystem>

#include "apps/migrate/migrate_automodel.h"
#include "sdk/base/words.h"

namespace meshwright::config {
namespace {

constexpr const char* kHub =
    "data of the hub is not read: save its rows as JSON Lines (messages, "
    "prompt and completion, or text)";

// A file or folder of this machine, as Automodel tells them from names on the hub.
bool is_path(const std::string& text) {
  std::error_code failed;
  return text.starts_with('/') || text.starts_with('.') || text.starts_with('~') ||
         text.ends_with(".jsonl") || text.ends_with(".json") || text.ends_with(".ndjson") ||
         text.find('*') != std::string::npos || std::count(text.begin(), text.end(), '/') > 1 ||
         (text.size() < 200 && std::filesystem::exists(text, failed));
}

class DataTable {
 public:
  DataTable(Migrator& m, const std::string& name) : m_(m), name_(name) {}

  // Whether the table's data can be read here.
  bool read() {
    Leaf* target = m_.take(name_ + "._target_");
    if (target == nullptr || target->value.kind != Value::Kind::string) return false;
    m_.drop({(name_ + ".tokenizer._target_").c_str()});
    const std::string path = text::normal(target->value.text),
                      kind = text::normal(class_of(*target));
    const bool mapped = kind.find("columnmapped") != std::string::npos;
    if ((kind.find("chatdataset") != std::string::npos || mapped) &&
        m_.knows(name_ + ".jsonl.format"))
      return rows(*target, mapped);
    const char* ours = kind.find("megatron") != std::string::npos  ? "megatron"
                       : kind.find("nanogpt") != std::string::npos ? "tokens"
                       : path.find("mock") != std::string::npos    ? "mock"
                                                                   : nullptr;
    if (ours == nullptr) {
      m_.left(*target, std::string(kHub) + ", and name them: " + name_ +
                           ".plugin = \"jsonl\" and " + name_ + ".path");
      return false;
    }
    mock_ = std::string_view(ours) == "mock";
    m_.set(name_ + ".kind", Value(ours), *target, "after the name of the class");
    Leaf* files = m_.take(name_ + ".paths");
    if (files == nullptr) files = m_.take(name_ + ".file_pattern");
    return path_of(files) || mock_;
  }

  bool mock() const { return mock_; }

 private:
  bool path_of(Leaf* leaf) {
    if (leaf == nullptr) return false;
    if (leaf->value.kind == Value::Kind::list && leaf->value.items.size() == 1) {
      Value only = leaf->value.items[0];
      leaf->value = std::move(only);
    }
    if (is_text(leaf)) {
      m_.set(name_ + ".path", leaf->value, *leaf);
      return true;
    }
    m_.left(*leaf, name_ + ".path is one file, folder or pattern");
    return true;
  }

  // Rows of conversations, or of prompts and completions: the plugin jsonl's.
  bool rows(Leaf& target, bool mapped) {
    const std::string own = name_ + ".jsonl.";
    m_.set(name_ + ".plugin", Value("jsonl"), target, "after the name of the class");
    m_.assume(own + "format", Value(mapped ? "prompt_completion" : "messages"),
              "what its class reads");
    if (mapped) columns();
    Leaf *files = m_.take(name_ + ".path_or_dataset_id"), *part = m_.find(name_ + ".split"),
         *last = m_.take(name_ + ".mask_history"),
         *masked = m_.take(name_ + ".answer_only_loss_mask"),
         *look = m_.take(name_ + ".chat_template"),
         *words = m_.take(name_ + ".tokenizer.pretrained_model_name_or_path");
    bool found = false;
    if (is_text(files) && !is_path(files->value.text)) {
      m_.left(*files, std::string(kHub) + " and name them as " + name_ + ".path");
    } else {
      found = path_of(files);
      // Files of this machine are read whole.
      if (part != nullptr && part->value.text.find('[') == std::string::npos) part->used = true;
    }
    if (last != nullptr && is_true(last->value))
      m_.set(own + "train_on", Value("last"), *last);
    else if (masked != nullptr && masked->value.kind == Value::Kind::boolean)
      m_.set(own + "train_on", Value(masked->value.boolean ? "assistant" : "all"), *masked);
    if (is_text(look) && look->value.text.find('{') == std::string::npos)
      m_.set(own + "chat_template", look->value, *look);
    else if (look != nullptr && !is_empty(look->value))
      m_.left(*look, own + "chat_template names a file: save it as one");
    if (is_text(words))
      m_.set(own + "tokenizer", Value(local_folder(words->value.text)), *words,
             download(words->value.text));
    const int64_t pack = m_.count("packed_sequence.packed_sequence_size").value_or(0);
    const Leaf* strategy = m_.find("packed_sequence.packing_strategy");
    if (pack <= 0) {
      m_.assume(own + "packing", Value("none"),
                "one row a sample, as Automodel has it without packing");
    } else {
      const bool neat = strategy != nullptr && strategy->value.text == "neat";
      if (!neat) m_.assume(own + "packing", Value("sequential"), "packs are filled in order there");
      m_.assume(own + "truncate", Value("drop"),
                "longer rows are dropped there where rows are packed");
    }
    if (pack <= 0 && m_.find(name_ + ".seq_length") == nullptr &&
        m_.find(name_ + ".seq_len") == nullptr)
      m_.want(name_ + ".seq_len",
              "tokens a sample; there each batch is as long as its longest row");
    return found;
  }

  void columns() {
    for (const auto& [theirs, ours] : {std::pair("question", "prompt"), {"answer", "completion"}}) {
      Leaf* column = m_.take(name_ + ".column_mapping." + theirs);
      if (column != nullptr && column->value.text != ours)
        m_.left(
            *column,
            std::string("rows here have the columns prompt and completion: rename it to ") + ours);
    }
  }

  Migrator& m_;
  const std::string name_;
  bool mock_ = false;
};

}  // namespace

bool automodel_data(Migrator& m) {
  DataTable trained(m, "dataset"), validation(m, "validation_dataset");
  trained.read();
  const bool validates = validation.read();
  // A pack is a sample.
  Leaf* pack = m.take("packed_sequence.packed_sequence_size");
  if (m.count("packed_sequence.packed_sequence_size").value_or(0) > 0) {
    m.set("dataset.seq_len", pack->value, *pack);
    for (const char* key : {"dataset.seq_length", "dataset.seq_len"})
      if (Leaf* leaf = m.take(key); leaf != nullptr && leaf->value.integer != pack->value.integer)
        m.left(*leaf, "packed_sequence_size is the length of a sample");
    if (validates) m.assume("validation_dataset.seq_len", pack->value, "as the data that train");
  }
  const Leaf* saves = m.find("step_scheduler.ckpt_every_steps");
  m.validation(validates, {{"step_scheduler.val_every_steps", "validation_dataset.every_steps"},
                           {"validation_dataset.seq_length", "validation_dataset.seq_len"},
                           {"validation_dataset.seq_len", "validation_dataset.seq_len"},
                           {"validation_dataloader.num_workers", "validation_dataset.workers"},
                           {"validation_dataloader.shuffle", "validation_dataset.shuffle"}});
  if (validates) {
    m.assume("validation_dataset.every_steps",
             saves != nullptr && saves->value.kind == Value::Kind::integer ? saves->value
                                                                           : integer_value(100),
             "Automodel validates where it saves");
    m.want(
        "validation_dataset.num_batches",
        "global batches a validation; Automodel reads all of its validation data, 8 are read here "
        "until it is set");
  }
  return trained.mock();
}

}  // namespace meshwright::config
