#include "engine/train/preflight/source.h"

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <boost/json/string.hpp>
#include <boost/json/value.hpp>

#include "engine/checkpoint/adapters.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/folder.h"
#include "engine/job/plan.h"
#include "engine/models/models.h"
#include "engine/models/other_format.h"
#include "meshwright/error.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/words.h"
#include "sdk/text/tokenizer/folder.h"

namespace meshwright::generate {

namespace fs = std::filesystem;

namespace {

bool is_there(const fs::path& path) {
  std::error_code failed;
  return fs::exists(path, failed);
}

std::string contents(const fs::path& path) {
  return base::read_foreign(path, 16 << 20, ErrorCode::file_unreadable);
}

// One id or a list of them; absent or null: none.
std::optional<std::vector<int64_t>> eos_of(const fs::path& file, int64_t vocab) {
  if (!is_there(file)) return std::nullopt;
  ConfigJson json = ConfigJson::parse(contents(file), file.string());
  if (!json.has("eos_token_id")) return std::nullopt;
  std::vector<int64_t> out;
  if (json.is_list("eos_token_id"))
    out = json.integers("eos_token_id", 0, INT32_MAX);
  else
    out.push_back(json.integer("eos_token_id", 0, INT32_MAX));
  std::erase_if(out, [&](int64_t id) { return id >= vocab; });  // never drawn
  return out;
}

// "72,101,108,108,111"; of a longer text its beginning and "...".
std::string first_bytes(std::string_view text) {
  constexpr size_t kShown = 24;
  std::string out;
  for (char c : text.substr(0, kShown))
    out += (out.empty() ? "" : ",") + std::to_string(static_cast<unsigned char>(c));
  return text.size() > kShown ? out + ",..." : out;
}

// As the plugin's family has it.
ModelOutline outline_of_plugin(const Source& source, const std::vector<std::string>& sets) {
  const Settings settings = generate::settings(source, sets, 1);
  Diagnostics problems;
  config::LoadOptions options;
  options.sets = settings.sets;
  try {
    const std::optional<plan::Job> job =
        plan::load_job(config::Source::parse(settings.toml, options, problems), problems);
    problems.throw_if_any();
    return plan::model_of(*job)->outline(job->config);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::plugin_not_found || source.model_settings().empty()) throw;
    // Nobody typed it: the checkpoint names the family.
    throw Error(error.code(), error.message())
        .key("model.plugin")
        .note("its checkpoint says so: " + source.folder().string() + ", " +
              source.model_settings().front())
        .help(
            "add --set 'plugins.load=[\"/path/to/libmeshwright_mine.so\"]': config.resolved.toml "
            "of the run says which one it was trained with");
  }
}

// The model that the folder of adapters names, where it is here.
std::string model_of_adapters(const fs::path& folder) try {
  const fs::path file = folder / checkpoint::kAdapterConfig;
  const std::string base =
      ConfigJson::parse(contents(file), file.string()).string("base_model_name_or_path", "");
  std::error_code failed;
  return !base.empty() && fs::is_directory(base, failed) ? base : "MODEL";
} catch (const Error&) {
  return "MODEL";
}

// Adapters are no model. A checkpoint of them has meta.json, and a run's folder no such file.
void check_no_adapters(const fs::path& path) {
  if (!is_there(path / checkpoint::kAdapterWeights) || is_there(path / "meta.json")) return;
  throw Error(ErrorCode::no_checkpoint, path.string() + " holds adapters without their model")
      .help("meshwright generate " + model_of_adapters(path) + " --adapter " + path.string())
      .help("a run with both can be named as it is: meshwright generate runs/first");
}

// A model's folder without weights is no run whose checkpoints are missing.
void check_model_has_weights(const fs::path& path) {
  const std::optional<std::string> other = base::other_format_help(path);
  const bool run =
      is_there(path / "meta.json") || is_there(path / "checkpoints") || is_there(path / "latest");
  if (run || (!is_there(path / "config.json") && !other)) return;
  Error none(ErrorCode::bad_safetensors,
             path.string() +
                 " is a model without weights: it has neither model.safetensors nor "
                 "model.safetensors.index.json");
  if (other) none.help(*other);
  none.help("download or copy the model whole: hf download NAME --local-dir " + path.string());
  if (is_there(path / "config.json"))
    none.help("for random weights of its shape train a step: model.config = \"" +
              (path / "config.json").string() + "\"");
  throw none;
}

}  // namespace

bool Source::of_plugin(const std::vector<std::string>& sets) const {
  auto names_one = [](const std::string& set) { return set.starts_with("model.plugin="); };
  return std::ranges::any_of(model_settings_, names_one) || std::ranges::any_of(sets, names_one);
}

bool Source::has_adapters() const {
  return std::ranges::any_of(model_settings_,
                             [](const std::string& set) { return set.starts_with("lora."); });
}

ModelOutline Source::outline(const std::vector<std::string>& sets) const {
  return of_plugin(sets) ? outline_of_plugin(*this, sets)
                         : outlines::load_outline(config(), DType::float32);
}

Source::Source(const fs::path& path, const std::vector<std::string>& sets)
    : folder_(path), config_(path / "config.json") {
  std::error_code failed;
  if (!fs::is_directory(path, failed)) {
    Error missing(ErrorCode::file_unreadable, is_there(path)
                                                  ? path.string() + " is not a folder"
                                                  : "there is no folder " + path.string());
    if (std::vector<std::string> helps = outlines::hub_helps(path); !helps.empty())
      missing.help(helps[0]);
    if (std::optional<std::string> help = base::other_format_help(path)) missing.help(*help);
    throw missing
        .help(
            "name a Hugging Face folder: config.json, model.safetensors, and tokenizer.json for "
            "text")
        .help("or a run or a checkpoint: runs/first, runs/first/checkpoints/step_00000050");
  }
  bool weights =
      is_there(path / "model.safetensors") || is_there(path / "model.safetensors.index.json");
  if (weights && !is_there(config()))
    throw Error(ErrorCode::file_unreadable, path.string() + " has weights but no config.json")
        .help("copy the model's config.json into the folder");
  if (!weights) {
    check_no_adapters(path);
    check_model_has_weights(path);
    open_checkpoint();
  }
  vocab_ = outline(sets).vocab_size;
  if (const std::optional<fs::path> file = tokenizer_file())
    tokenizer_ = tokenizer::Tokenizer::load(*file);
}

Source Source::of_model(const fs::path& config, int64_t vocab, bool bytes) {
  Source out;
  out.folder_ = config.parent_path();
  out.config_ = config;
  out.vocab_ = vocab;
  if (const std::optional<fs::path> file = out.tokenizer_file(); !bytes && file)
    out.tokenizer_ = tokenizer::Tokenizer::load(*file);
  return out;
}

// The small files that are used here are held to their checksums; the ranks do so with the weights
// they read.
void Source::open_checkpoint() {
  checkpoint_ = true;
  folder_ = checkpoint::resolve(folder_);
  config_ = folder_ / "config.json";
  checkpoint::Checkpoint opened(folder_);
  bool model = false;
  for (const checkpoint::FileRecord& file : opened.meta().files) {
    model = model || file.name == "config.json" || file.name == kModelSettings;
    if (file.name.ends_with(".json")) opened.read_file(file.name);
    if (file.name == kModelSettings)
      model_settings_ = text::split_names(opened.read_file(file.name).c_str(), '\n');
  }
  // Whoever made it: what it says is of the model, and nothing that is loaded or read elsewhere.
  for (const std::string& set : model_settings_) {
    const std::string key = set.substr(0, set.find('='));
    const bool of_model = key == "model.plugin" || key.starts_with("lora.") ||
                          (key.starts_with("model.") && key.find('.', 6) != std::string::npos);
    if (!of_model || key == "lora.adapter")
      throw Error(ErrorCode::bad_checkpoint, (folder_ / kModelSettings).string() + " sets " + key +
                                                 ", which is none of a model's settings")
          .help("the file holds model.plugin, the options of that plugin, and lora.*");
  }
  if (!model)
    throw Error(
        ErrorCode::bad_checkpoint,
        folder_.string() + " has no config.json: it holds no model that this program can build")
        .help("generate takes the checkpoints of meshwright train");
}

fs::path Source::extra(const char* name) const {
  fs::path carried = folder_ / "source" / name;
  return checkpoint_ && is_there(carried) ? carried : folder_ / name;
}

std::optional<fs::path> Source::tokenizer_file() const {
  const fs::path carried = folder_ / "source";
  if (checkpoint_)
    if (std::optional<fs::path> file = tokenizer::tokenizer_file(carried)) return file;
  return tokenizer::tokenizer_file(folder_);
}

std::vector<int64_t> Source::ids(const std::string& flag, const std::string& list) const {
  std::vector<int64_t> out;
  for (const std::string& part : text::split(list, ',')) {
    const std::string word(text::trim(part));
    const std::optional<int64_t> id = text::to_number(word);
    if (!id)
      throw Error(ErrorCode::usage, "--" + flag +
                                        " wants token ids with commas between them, found \"" +
                                        word + "\" in \"" + list + "\"")
          .help("--" + flag + " 1,2,3");
    if (*id < 0 || *id >= vocab_)
      throw Error(ErrorCode::bad_token, "--" + flag + " has the token " + std::to_string(*id) +
                                            ", but the model's vocabulary has " +
                                            std::to_string(vocab_) + " entries")
          .help("tokens are 0 to " + std::to_string(vocab_ - 1));
    out.push_back(*id);
  }
  return out;
}

std::vector<int64_t> Source::prompt(const Request& request) const {
  if (request.prompt && request.tokens)
    throw Error(ErrorCode::usage, "--prompt and --tokens both say what to continue: one of them")
        .help("leave out --tokens");
  if (request.tokens) return ids("tokens", *request.tokens);
  if (!request.prompt) {
    Error error(ErrorCode::usage, "generate needs something to continue");
    if (tokenizer_ || bytes()) error.help("--prompt 'Once upon a time'");
    throw error.help("--tokens 1,2,3");
  }
  const std::string& text = *request.prompt;
  std::vector<int64_t> out;
  if (tokenizer_) {
    out = tokenizer_->encode(text);
    if (out.empty())
      throw Error(ErrorCode::usage,
                  "--prompt is empty, and the tokenizer puts nothing before a text")
          .help("--prompt 'Once upon a time'");
    const int64_t largest = std::ranges::max(out);
    if (largest >= vocab_)
      throw Error(ErrorCode::bad_token, tokenizer_file().value_or(folder_).string() +
                                            " gives the token " + std::to_string(largest) +
                                            ", but the model's vocabulary has " +
                                            std::to_string(vocab_) + " entries")
          .help("check that config.json and the tokenizer belong together");
    return out;
  }
  if (vocab_ != 256) {
    Error error(ErrorCode::usage, "--prompt needs a tokenizer: " + folder_.string() + " " +
                                      tokenizer::kNoTokenizer +
                                      ", and the model's vocabulary has " + std::to_string(vocab_) +
                                      " entries, not the 256 of bytes");
    if (checkpoint_ && vocab_ > 256 && !text.empty())
      error.help(
          "of a run on the bytes of texts (dataset.kind = \"text\"), name them as its tokens: "
          "--tokens " +
          first_bytes(text));
    else
      error.help("--tokens 1,2,3");
    throw error.help("copy the model's tokenizer.json to " + extra("tokenizer.json").string());
  }
  if (text.empty())
    throw Error(ErrorCode::usage, "--prompt is empty: a text continues at least one byte")
        .help("--prompt '\n' to begin a line");
  for (char c : text) out.push_back(static_cast<unsigned char>(c));
  return out;
}

std::vector<int64_t> Source::stops(const Request& request) const {
  if (request.stop)
    return *request.stop == "none" ? std::vector<int64_t>{} : ids("stop", *request.stop);
  for (const fs::path& file : {extra("generation_config.json"), config()})
    if (auto eos = eos_of(file, vocab_)) return *eos;
  return {};
}

Text::Text(const Source& source, Form form) : form_(form) {
  if (form == Form::text && source.tokenizer() != nullptr)
    tokens_.emplace(*source.tokenizer(), /*skip_special=*/true);
}

std::string Text::add(int64_t id) {
  if (form_ == Form::ids) {
    std::string out = (begun_ ? "," : "") + std::to_string(id);
    begun_ = true;
    return out;
  }
  if (tokens_) return tokens_->add(id);
  char byte = static_cast<char>(id);
  return bytes_.add({&byte, 1});
}

void check_sets(const Source& source, const std::vector<std::string>& sets,
                const std::string& doing, const std::vector<std::string>& tables) {
  std::vector<std::string> beginnings = {"distributed.", "dist_env.", "plugins."};
  std::string names = "distributed.*, dist_env.*, plugins.*";
  for (const std::string& table : tables) {
    beginnings.push_back(table + ".");
    names += ", " + table + ".*";
  }
  for (const std::string& set : sets) {
    const std::string key = set.substr(0, set.find('='));
    bool used = key == "run.threads" || key == "run.deterministic" ||
                key == "run.float32_matmul_precision" || key == "model.torch_dtype";
    used = used || (key.starts_with("model.") && key != "model.config" &&
                    key != "model.pretrained" && source.of_plugin(sets));
    if (!used && std::ranges::none_of(beginnings, [&](const std::string& beginning) {
          return key.starts_with(beginning);
        }))
      throw Error(ErrorCode::bad_set, "--set " + key + " has no part in " + doing)
          .key(key)
          .help("keys that have: " + names + ", model.torch_dtype, run.threads")
          .help("leave out --set " + key);
  }
}

std::string model_tables(const Source& source) {
  // JSON's escapes are TOML's too.
  const std::string model =
      is_there(source.config())
          ? "\nconfig = " + boost::json::serialize(boost::json::value(source.config().string()))
          : "";
  return "[model]" + model +
         "\ntorch_dtype = \"float32\"\n[distributed]\nstrategy = "
         "\"ddp\"\n[distributed.mp_policy]\nparam_dtype = \"float32\"\noutput_dtype = "
         "\"float32\"\n";
}

Settings settings(const Source& source, const std::vector<std::string>& sets, int64_t world_size,
                  const std::vector<std::string>& adapters) {
  check_sets(source, sets, "generating");
  std::vector<std::string> all = source.model_settings();
  all.insert(all.end(), adapters.begin(), adapters.end());
  all.insert(all.end(), sets.begin(), sets.end());
  // Samples that nobody reads: every schedule of a pipeline takes so many. Of their length: ranks
  // of cp with head and tail, and those of tp, divide it.
  const std::string n = std::to_string(2 * world_size);
  return {"schema = 1\n" + model_tables(source) + "[step_scheduler]\nglobal_batch_size = " + n +
              "\nlocal_batch_size = 1\n[dataset]\nkind = \"mock\"\nseq_len = " + n + "\n",
          all};
}

}  // namespace meshwright::generate
