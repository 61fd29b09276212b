// config new: a job to begin with, for a purpose, a model and data, with the settings that people
// use for it and why.
#include <algorithm>
#include <boost/json/object.hpp>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "apps/cli/common.h"
#include "apps/cli/job_file.h"
#include "engine/config/describe.h"
#include "engine/launch/spawn.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/files/json_codec.h"
#include "sdk/base/shell_word.h"
#include "sdk/base/words.h"
#include "sdk/text/tokenizer/folder.h"
#include "sdk/text/tokenizer/tokenizer.h"

namespace meshwright::cli {

namespace {

namespace fs = std::filesystem;

enum class Purpose : uint8_t { pretrain, sft, lora, moe };
struct PurposeRow {
  const char* flag;
  const char* what;
};
constexpr PurposeRow kPurposes[] = {{"pretrain", "Pretraining from random weights"},
                                    {"sft", "Fine-tuning of all weights on chats"},
                                    {"lora", "Low-rank adapters on chats"},
                                    {"moe", "Pretraining of a mixture of experts"}};

// What stands where nobody has said a path; validate tells its line.
constexpr const char *kSomeModel = "<folder of a Hugging Face model>",
                     *kSomeConfig = "<folder of a Hugging Face model>/config.json",
                     *kSomeRows = "<rows of chats>.jsonl", *kSomeText = "<file or folder of text>",
                     *kSomeTokenizer = "<folder with tokenizer.json>";

// What a folder, or its config.json, says of a model.
struct GivenModel {
  fs::path folder, config;
  bool weights = false, tokenizer = false;
  int64_t hidden = 0, positions = 0, experts = 0, vocabulary = 0;  // 0: not said
};

std::string folder_of(const GivenModel& model) {
  return model.folder.empty() ? "." : model.folder.string();
}

std::optional<GivenModel> model_at(const fs::path& place) {
  std::error_code failed;
  GivenModel out;
  const bool folder = fs::is_directory(place, failed);
  out.config = folder ? place / "config.json" : place;
  out.folder = folder ? place : place.parent_path();
  if (!fs::is_regular_file(out.config, failed) || out.config.extension() != ".json") return {};
  boost::json::value parsed;
  try {
    parsed = base::parse_strictly(base::read_file(out.config, 1 << 20), {});
  } catch (const base::JsonProblem&) {
    return {};  // rows, or what validate will tell of
  }
  if (!parsed.is_object()) return {};
  const boost::json::object* all = &parsed.get_object();
  if (!folder && !all->contains("model_type")) return {};  // rows, not a model
  if (const boost::json::value* text = all->if_contains("text_config"); text && text->is_object())
    all = &text->get_object();
  auto number = [&](const char* key) -> int64_t {
    const boost::json::value* value = all->if_contains(key);
    return value != nullptr && value->is_int64() ? value->get_int64() : 0;
  };
  out.hidden = number("hidden_size");
  out.positions = number("max_position_embeddings");
  out.vocabulary = number("vocab_size");
  out.experts =
      std::max({number("num_local_experts"), number("num_experts"), number("n_routed_experts")});
  out.tokenizer = tokenizer::tokenizer_file(out.folder).has_value();
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_of(out), failed))
    out.weights = out.weights || (folder && entry.path().extension() == ".safetensors");
  return out;
}

// What data are, by their names.
struct GivenData {
  std::string path;
  const char* kind = "";  // "tokens", "megatron", "text"; empty: rows
};

bool is_rows(const fs::path& file) {
  return file.extension() == ".jsonl" || file.extension() == ".ndjson" ||
         file.extension() == ".json";
}

// `tunes`: rows of chats are wanted; else texts, of which rows may be some.
GivenData data_at(const fs::path& place, bool tunes) {
  auto kind_of = [tunes](const fs::path& file) {
    std::error_code failed;
    if (is_rows(file) || (tunes && file.extension() == ".parquet")) return "";
    if (file.extension() != ".bin") return "text";
    return fs::exists(fs::path(file).replace_extension(".idx"), failed) ? "megatron" : "tokens";
  };
  std::error_code failed;
  if (!fs::is_directory(place, failed)) return {place.string(), kind_of(place)};
  bool rows = false, tables = false, tokens = false, others = false;
  for (const fs::directory_entry& entry : fs::directory_iterator(place, failed)) {
    rows = rows || entry.path().extension() == ".jsonl";
    tables = tables || entry.path().extension() == ".parquet";
    tokens = tokens || entry.path().extension() == ".bin";
    others = others || (entry.path().extension() != ".jsonl" &&
                        !entry.path().filename().native().starts_with('.'));
  }
  if (rows && (tunes || !others)) return {(place / "*.jsonl").string(), ""};
  if (tables && tunes) return {(place / "*.parquet").string(), ""};
  if (tokens) return {(place / "*.bin").string(), "tokens"};
  return {place.string(), "text"};
}

struct Machine {
  bool device = false;
  int64_t ranks = 1;
};
Machine this_machine() {
  Machine out;
  out.device = launch::driver_lists_devices();
  std::error_code failed;
  if (out.device)
    out.ranks = std::max<int64_t>(
        1, std::distance(fs::directory_iterator("/proc/driver/nvidia/gpus", failed),
                         fs::directory_iterator()));
  else
    out.ranks = std::thread::hardware_concurrency() < 2 ? 1 : 2;
  return out;
}

struct Wanted {
  Purpose purpose = Purpose::pretrain;
  std::optional<GivenModel> model;
  std::optional<GivenData> data;
  Machine machine;
  bool tunes() const { return purpose == Purpose::sft || purpose == Purpose::lora; }
};

// The largest number of ranks that divides both the experts and the machine's.
int64_t expert_ranks(const Wanted& job) {
  const int64_t experts = job.model ? job.model->experts : 0;
  for (int64_t ranks = job.machine.ranks; ranks > 1; --ranks)
    if (job.machine.ranks % ranks == 0 && experts % ranks == 0) return ranks;
  return 1;
}

using JobLines = std::vector<JobLine>;

void about_model(const Wanted& job, JobLines& out) {
  const GivenModel* model = job.model ? &*job.model : nullptr;
  if (job.tunes())
    out.push_back({"model", "pretrained",
                   quoted_toml(model != nullptr ? folder_of(*model) : kSomeModel),
                   "config.json, model*.safetensors and tokenizer.json"});
  else
    out.push_back({"model", "config",
                   quoted_toml(model != nullptr ? model->config.string() : kSomeConfig),
                   model != nullptr && model->weights
                       ? "random weights; pretrained = its folder goes on from those that lie there"
                       : "random weights of that shape"});
  out.push_back({"model", "torch_dtype", "\"float32\"",
                 "the weights that the optimizer updates: small updates are lost in bfloat16"});
}

void about_machine(const Wanted& job, JobLines& out) {
  out.push_back({"dist_env", "device", "\"auto\"", "an NVIDIA device, where there is one"});
  const int64_t experts_over = job.purpose == Purpose::moe ? expert_ranks(job) : 1;
  if (experts_over > 1) {
    out.push_back({"distributed", "strategy", "\"moe_ep\"",
                   "experts are divided over ranks, and all else is sharded"});
    out.push_back({"distributed", "ep_size", std::to_string(experts_over),
                   "ranks that a layer's experts are dealt to: it divides them and the ranks"});
  } else {
    out.push_back({"distributed", "strategy", "\"fsdp2\"",
                   "each rank keeps a part of the weights; \"ddp\" keeps all where they fit"});
  }
  if (job.machine.device)
    out.push_back({"distributed", "activation_checkpointing", "\"selective\"",
                   "less memory for a tenth of the time; \"none\" where all fits"});
  out.push_back({"distributed.mp_policy", "param_dtype",
                 job.machine.device ? "\"bfloat16\"" : "\"float32\"",
                 job.machine.device ? "what devices multiply fastest; its range is float32's"
                                    : "CPUs are slower in bfloat16, which devices want"});
}

void about_steps(const Wanted& job, JobLines& out) {
  const bool device = job.machine.device;
  const int64_t local = device ? (job.tunes() ? 2 : 4) : 2;
  const int64_t wanted = job.purpose == Purpose::lora  ? 16
                         : job.purpose == Purpose::sft ? 32
                         : device                      ? 256
                                                       : 16;
  const int64_t one = local * job.machine.ranks, all = std::max<int64_t>(1, wanted / one) * one;
  out.push_back({"step_scheduler", "global_batch_size", std::to_string(all),
                 job.purpose == Purpose::lora  ? "16 in QLoRA; adapters take small steps well"
                 : job.purpose == Purpose::sft ? "packs of seq_len tokens; 32 to 128 are usual"
                                               : "a million tokens a step and more for billions of "
                                                 "parameters"});
  out.push_back({"step_scheduler", "local_batch_size", std::to_string(local),
                 "of a rank at once: halve it where memory runs out; the step stays the same"});
  if (job.tunes())
    out.push_back({"step_scheduler", "epochs", "3", "1 to 3 are usual: more learns rows by heart"});
  else
    out.push_back({"step_scheduler", "max_steps", "1000",
                   "steps * global_batch_size * seq_len tokens; 20 a parameter are the least for a "
                   "good model"});
}

void about_learning(const Wanted& job, JobLines& out) {
  const int64_t hidden = job.model ? job.model->hidden : 0;
  if (job.purpose == Purpose::lora) {
    out.push_back({"lora", "r", "16", "8 to 64 are usual"});
    out.push_back({"lora", "alpha", "32", "adapters count alpha / r times: twice"});
    out.push_back({"lora", "target_modules", "\"all-linear\"",
                   "all come nearer to full fine-tuning than q_proj and v_proj alone"});
    out.push_back({"lora", "dropout", "0.05", "against learning by heart; 0 for many rows"});
  }
  const char *lr = "3e-4", *low = "3e-5", *why = "Llama 2 7B and OLMo 2 7B";
  if (job.purpose == Purpose::lora) {
    lr = "2e-4", low = "0", why = "ten times that of full fine-tuning, as QLoRA has it";
  } else if (job.purpose == Purpose::sft) {
    lr = "2e-5", low = "0", why = "1e-5 to 2e-5 are usual: more forgets what the model knew";
  } else if (job.purpose == Purpose::moe) {
    lr = "4e-4", low = "4e-5", why = "OLMoE; DeepSeek-V3 has 2.2e-4";
  } else if (hidden > 4096) {
    lr = "1.5e-4", low = "1.5e-5", why = "Llama 2 70B: large models take smaller steps";
  } else if (hidden > 0 && hidden <= 1024) {
    lr = "6e-4", low = "6e-5", why = "GPT-3 Small: small models take larger steps";
  }
  out.push_back({"optimizer", "name", "\"adamw\""});
  out.push_back({"optimizer", "lr", lr, why});
  out.push_back({"optimizer", "betas", job.tunes() ? "[0.9, 0.999]" : "[0.9, 0.95]",
                 job.tunes() ? "AdamW's own" : "0.95 forgets a bad step sooner; Llama, OLMo"});
  out.push_back({"optimizer", "weight_decay", job.tunes() ? "0" : "0.1",
                 job.tunes() ? "few steps: there is nothing to hold back" : "GPT-3, Llama, OLMo"});
  if (!job.tunes())
    out.push_back({"optimizer", "no_decay", "\"norms_and_biases\"", "they are scales, not maps"});
  out.push_back({"optimizer", "max_grad_norm", "1.0", "a bad batch moves the weights no further"});
  out.push_back({"lr_scheduler", "lr_decay_style", "\"cosine\""});
  out.push_back({"lr_scheduler", "lr_warmup_steps", job.tunes() ? "10" : "50",
                 job.tunes() ? "some 3% of the steps: AdamW's averages begin empty"
                             : "1% to 5% of the steps: AdamW's averages begin empty"});
  out.push_back({"lr_scheduler", "min_lr", low,
                 job.tunes() ? "down to nothing, as a run that ends does"
                             : "a tenth of lr: the run may be prolonged"});
}

void about_data(const Wanted& job, JobLines& out) {
  const int64_t wanted = job.machine.device ? 2048 : 256;
  const int64_t most = job.model && job.model->positions > 1 ? job.model->positions : wanted;
  const std::string length = std::to_string(std::min(wanted, most));
  const bool rows = job.data ? *job.data->kind == '\0' : job.tunes();
  const std::string path = job.data ? job.data->path : job.tunes() ? kSomeRows : kSomeText;
  if (rows)
    out.push_back({"dataset", "plugin", "\"jsonl\"",
                   "rows of messages, of prompt and completion, or of text"});
  const std::string kind = job.data ? job.data->kind : "text";
  const bool brings = job.model && job.model->tokenizer;
  if (!rows) out.push_back({"dataset", "kind", "\"" + kind + "\""});
  if (!rows && kind == "text")
    out.push_back({"dataset", "tokenizer",
                   brings ? quoted_toml(folder_of(*job.model)) : "\"bytes\"",
                   "a folder with tokenizer.json, or \"bytes\""});
  out.push_back({"dataset", "path", quoted_toml(path)});
  out.push_back({"dataset", "seq_len", length,
                 job.machine.device
                     ? "tokens a sample; attention's work grows with its square"
                     : "tokens a sample: short for CPUs, 2048 and more for devices"});
  if (!rows) return;
  if (job.tunes() && job.model && !brings)
    out.push_back(
        {"dataset.jsonl", "tokenizer", quoted_toml(kSomeTokenizer), "the model's folder has none"});
  if (!job.tunes() && brings)
    out.push_back({"dataset.jsonl", "tokenizer", quoted_toml(folder_of(*job.model)),
                   "the folder with tokenizer.json"});
  out.push_back({"dataset.jsonl", "train_on", job.tunes() ? "\"assistant\"" : "\"all\"",
                 job.tunes() ? "answers are learnt, prompts are read" : "all that stands there"});
  out.push_back({"dataset.jsonl", "packing", "\"bfd\"",
                 "several rows share a sample and do not see each other: no padding"});
}

std::string job_of(const Wanted& job) {
  JobLines lines = {{"run", "dir", "\"runs\""},
                    {"run", "name", quoted_toml(kPurposes[static_cast<size_t>(job.purpose)].flag),
                     "results go to <dir>/<name>: another name for another run"}};
  about_model(job, lines);
  about_machine(job, lines);
  about_steps(job, lines);
  about_learning(job, lines);
  about_data(job, lines);
  lines.push_back(
      {"checkpoint", "every_steps", job.tunes() ? "100" : "500", "what a failure costs at most"});
  lines.push_back({"checkpoint", "keep", "2", "the newest; the one before in case it is bad"});
  lines.push_back({"checkpoint", "export", "\"final\"",
                   job.purpose == Purpose::lora ? "the adapters as peft reads them"
                                                : "a Hugging Face folder at the end"});
  if (job.purpose == Purpose::moe)
    lines.push_back(
        {"report", "step_details", "true", "steps are printed with the load of experts"});
  return job_text(std::string("# ") + kPurposes[static_cast<size_t>(job.purpose)].what +
                      ". meshwright config new wrote it; change what you like:\n"
                      "# `meshwright config explain KEY` says what may stand here.\n",
                  lines) +
         "\n# Data that it does not learn from, to see how well it does:\n"
         "# [validation_dataset]\n# path = \"...\"  # and the keys of [dataset]\n"
         "# every_steps = 100\n# num_batches = 8\n";
}

Purpose purpose_of(const Call& call) {
  std::vector<size_t> given;
  for (size_t i = 0; i < std::size(kPurposes); ++i)
    if (call.has(kPurposes[i].flag)) given.push_back(i);
  if (given.size() == 1) return static_cast<Purpose>(given[0]);
  Error error(ErrorCode::usage, given.empty() ? "config new wants what the job is for"
                                              : "config new writes a job for one purpose");
  for (const PurposeRow& row : kPurposes)
    error.help(std::string("meshwright config new --") + row.flag + "   " + row.what);
  throw error;
}

Wanted wanted_of(const Call& call) {
  Wanted out{purpose_of(call), {}, {}, this_machine()};
  std::error_code failed;
  for (const std::string& place : call.positionals) {
    if (std::optional<GivenModel> model = model_at(place); model && !out.model)
      out.model = std::move(model);
    else if (place.find('*') == std::string::npos && !fs::exists(place, failed))
      throw Error(ErrorCode::file_unreadable, place + ": there is no such file or folder")
          .help(
              "name a folder with config.json, or data: files or a folder; without one the file "
              "says what is still to be filled in");
    else if (!out.data)
      out.data = data_at(place, out.tunes());
    else
      throw Error(ErrorCode::usage,
                  place + " is no model, and there are data already: " + out.data->path)
          .help(
              "a model's folder has config.json; several files of data are a pattern: "
              "'data/*.jsonl'");
  }
  if (out.tunes() && out.data && *out.data->kind != '\0')
    throw Error(ErrorCode::usage, out.data->path + " holds no rows to fine-tune on")
        .help("rows are files that end in .jsonl or .parquet: messages, or prompt and completion")
        .help("meshwright config new --pretrain " + call.positionals.back() +
              " trains on text and tokens");
  if (out.purpose == Purpose::moe && out.model && out.model->experts < 2)
    throw Error(ErrorCode::usage, out.model->config.string() + " is of a model without experts")
        .help("name one with num_local_experts or num_experts")
        .help("meshwright config new --pretrain " + folder_of(*out.model));
  if (out.tunes() && out.model && !out.model->weights)
    throw Error(ErrorCode::usage,
                folder_of(*out.model) + " has no weights to begin with (*.safetensors)")
        .help("name a Hugging Face folder with its weights")
        .help("meshwright config new --pretrain " + out.model->config.string() +
              " begins with random ones");
  return out;
}

// "job.toml:9" for every placeholder.
std::vector<std::string> to_fill_in(const std::string& text, const std::string& file) {
  std::vector<std::string> out;
  const std::vector<std::string> lines = text::split(text, '\n');
  for (size_t i = 0; i < lines.size(); ++i)
    if (lines[i].find(" = \"<") != std::string::npos)
      out.push_back(file + ":" + std::to_string(i + 1) + "  " +
                    lines[i].substr(0, lines[i].find("  #")));
  return out;
}

// Where data would have ids that the model does not know, which validate finds once it reads them.
std::string tell_vocabulary(const Wanted& job) {
  if (!job.model || job.model->vocabulary == 0) return {};
  const std::string_view kind = job.data ? job.data->kind : job.tunes() ? "" : "text";
  const std::string home = folder_of(*job.model), known = std::to_string(job.model->vocabulary);
  int64_t given = 256;  // of bytes
  std::string whose = "texts without a tokenizer are bytes, with ids up to 255";
  if (kind == "tokens" || kind == "megatron") return {};
  if (const auto file = tokenizer::tokenizer_file(home)) try {
      given = tokenizer::Tokenizer::load(*file).size();
      whose = file->string() + " has ids up to " + std::to_string(given - 1);
    } catch (const Error& error) {
      return error.message();
    }
  else if (kind.empty())
    return {};
  if (given <= job.model->vocabulary) return {};
  return whose + ", but the vocab_size of " + job.model->config.string() + " is " + known +
         ": set that to " + std::to_string(given) +
         (job.tunes() ? " and enlarge its weights" : "") + ", or name the model's own tokenizer";
}

int run_config_new(Call& call) {
  const fs::path file = call.value("out", "job.toml");
  std::error_code failed;
  if (file.empty())
    throw Error(ErrorCode::usage, "--out wants the file to write").help("--out job.toml");
  if (fs::exists(fs::symlink_status(file, failed)))
    throw Error(ErrorCode::usage, file.string() + " is already there")
        .help("name another file: --out " + file.stem().string() + "_2.toml");
  const Wanted job = wanted_of(call);
  const std::string text = job_of(job);
  base::write_durably(file, text);
  const std::string program = called_as(), name = text::shell_word(file.string());
  call.out.write("wrote " + report::printable(file.string()) + ": " +
                 kPurposes[static_cast<size_t>(job.purpose)].what + ", for " +
                 text::counted(job.machine.ranks, "rank") + " on this machine's " +
                 (job.machine.device ? "NVIDIA devices" : "CPUs") + "\n");
  if (const std::string notice = tell_vocabulary(job); !notice.empty())
    call.out.write("notice: " + report::printable(notice) + "\n");
  if (const std::vector<std::string> gaps = to_fill_in(text, file.string()); !gaps.empty()) {
    call.out.write("\nFill in first:\n");
    for (const std::string& gap : gaps) call.out.write("  " + report::printable(gap) + "\n");
  }
  call.out.write("\nThen:\n");
  for (const auto& [what, command] : std::vector<std::pair<std::string, std::string>>{
           {"whether it can train", " validate " + name},
           {"what it needs of memory, and how it is laid out",
            " plan " + name + " --world-size " + std::to_string(job.machine.ranks)},
           {"train", " train " + name + " --nproc " + std::to_string(job.machine.ranks)}})
    call.out.write("  # " + what + "\n  " + program + command + "\n");
  return 0;
}

}  // namespace

Verb config_new_verb() {
  return declare(run_config_new, R"(
config new [FOLDER] [DATA]
Write a job to begin with, for a purpose, a model and data

FOLDER is a Hugging Face folder, or the config.json of one; DATA is a file, a folder or a pattern:
rows of JSON Lines, text, or tokens. Each is known by what it is, so that either may be left out;
what is missing is marked in the file. Settings are those that people use for the purpose, each with
why, and sizes are for this machine. Nothing is overwritten.
  meshwright config new --lora models/Llama-3.2-1B chats.jsonl
  meshwright config new --pretrain configs/models/llama-tiny.json notes/ --out notes.toml

--pretrain  From random weights, on text or tokens.
--sft       All weights of a model, on rows of chats or of prompts and completions.
--lora      Adapters beside a model that stays as it is, on the same rows.
--moe       From random weights of a mixture of experts, which ranks divide.
--out NEW.toml  Write the job to this file. Default: job.toml.
)");
}

}  // namespace meshwright::cli
