// What `generate` continues and with what: the folder, its tokens, the prompt. Links no LibTorch;
// the ranks run generate::generate_rank().
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/train/step/sampling.h"
#include "meshwright/outline.h"
#include "sdk/base/files/utf8.h"
#include "sdk/text/tokenizer/tokenizer.h"

namespace meshwright::generate {

// The command line.
struct Request {
  std::string folder;
  std::vector<std::string> sets;
  std::optional<std::string> prompt, tokens, stop;  // as given
  std::optional<std::string> adapter;               // a folder of adapters, to run beside the model
  bool merge = false;                               // in its weights instead
  int64_t max_new = 200;
  double temperature = 0.7;
  int64_t top_k = 0;  // 0: all
  double top_p = 1;
  double min_p = 0;
  double repetition_penalty = 1;
  uint64_t seed = 42;
  bool json = false;
  bool live = false;  // rank 0's standard output is a terminal

  Sampling sampling() const { return {temperature, top_k, top_p, min_p, repetition_penalty}; }
};

// In a checkpoint of a plugin's model: what --set needs beside config.json, a line each.
inline constexpr std::string_view kModelSettings = "model.toml";

// A folder with a model: Hugging Face's, or a checkpoint.
class Source {
 public:
  // `path`: a Hugging Face folder, a checkpoint, a folder of checkpoints or of a run. Throws
  // Error(file_unreadable | no_checkpoint | bad_checkpoint | bad_model_config | bad_tokenizer).
  // `sets`: --set, which may name the plugin of the model.
  explicit Source(const std::filesystem::path& path, const std::vector<std::string>& sets = {});
  // A model that is there already, of this config.json, whose folder may have a tokenizer.
  // `bytes`: it trains on the bytes of texts, which no tokenizer fits. Throws
  // Error(bad_model_config | bad_tokenizer).
  static Source of_model(const std::filesystem::path& config, int64_t vocab, bool bytes);

  const std::filesystem::path& folder() const { return folder_; }
  bool is_checkpoint() const { return checkpoint_; }
  const std::filesystem::path& config() const { return config_; }
  // Settings that name the model beside config.json.
  const std::vector<std::string>& model_settings() const { return model_settings_; }
  // Whether a plugin brings the model: the checkpoint says so, or `sets` do.
  bool of_plugin(const std::vector<std::string>& sets) const;
  // Whether it is a checkpoint of adapters, which run beside their model.
  bool has_adapters() const;
  // The model, without adapters. Throws what the constructor throws of it.
  ModelOutline outline(const std::vector<std::string>& sets) const;
  int64_t vocab() const { return vocab_; }
  bool bytes() const { return !tokenizer_ && vocab_ == 256; }  // tokens are the bytes of a text
  const tokenizer::Tokenizer* tokenizer() const { return tokenizer_ ? &*tokenizer_ : nullptr; }

  // The ids of the prompt, at least one, all of the model's vocabulary. Throws Error(usage |
  // bad_token | bad_tokenizer).
  std::vector<int64_t> prompt(const Request& request) const;
  // The ids that end a text: --stop, else eos_token_id of generation_config.json, else of
  // config.json. Throws Error(usage).
  std::vector<int64_t> stops(const Request& request) const;

  // A file beside the model: what a checkpoint carries along lies in its folder source/.
  std::filesystem::path extra(const char* name) const;

 private:
  Source() = default;
  void open_checkpoint();
  std::optional<std::filesystem::path> tokenizer_file() const;
  std::vector<int64_t> ids(const std::string& flag, const std::string& list) const;
  std::filesystem::path folder_, config_;
  bool checkpoint_ = false;
  int64_t vocab_ = 0;
  std::vector<std::string> model_settings_;
  std::optional<tokenizer::Tokenizer> tokenizer_;
};

// Text of a model's tokens as they come: through the tokenizer, or bytes. Without either, the ids
// themselves with commas.
class Text {
 public:
  enum class Form : uint8_t { text, ids };
  Text(const Source& source, Form form);
  std::string add(int64_t id);
  std::string finish() { return tokens_ ? tokens_->finish() : bytes_.finish(); }

 private:
  Form form_;
  bool begun_ = false;
  std::optional<tokenizer::TextStream> tokens_;
  base::Utf8Stream bytes_;
};

// The configuration that generating amounts to: the model, float32 unless `sets` say otherwise, one
// sample per rank. `sets` are --set. Throws Error(bad_set) for keys that have no part in it.
struct Settings {
  std::string toml;
  std::vector<std::string> sets;
};
// `adapters`: further settings, Adapter's (adapter.h).
Settings settings(const Source& source, const std::vector<std::string>& sets, int64_t world_size,
                  const std::vector<std::string>& adapters = {});

// Parts of it, for other verbs that run a model which is there. Throws Error(bad_set) for --set of
// a key that has no part in what `doing` says ("generating"). `tables`: those that have one beside
// the model and its layout ("validation_dataset").
void check_sets(const Source& source, const std::vector<std::string>& sets,
                const std::string& doing, const std::vector<std::string>& tables = {});
// [model] and [distributed]: float32, whole on each rank.
std::string model_tables(const Source& source);

}  // namespace meshwright::generate
