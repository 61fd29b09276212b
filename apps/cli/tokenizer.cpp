// tokenizer train: text files to a byte-level BPE.
#include <unistd.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "apps/cli/common.h"
#include "apps/cli/job_file.h"
#include "apps/cli/texts.h"
#include "apps/cli/verb.h"
#include "meshwright/error.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/files/utf8.h"
#include "sdk/base/terminal/progress.h"
#include "sdk/base/terminal/report.h"
#include "sdk/base/words.h"
#include "sdk/text/tokenizer/added_tokens.h"
#include "sdk/text/trainer/trained_files.h"

namespace meshwright::cli {

namespace {

namespace fs = std::filesystem;
namespace json = boost::json;
using tokenizer::WordPattern;

Error wrong(const std::string& message) { return {ErrorCode::usage, message}; }

constexpr const char* kTokenizerFile = "tokenizer.json";
constexpr const char* kConfigFile = "tokenizer_config.json";

WordPattern pattern_of(const std::string& name) {
  for (auto [known, pattern] : {std::pair("gpt2", WordPattern::gpt2),
                                {"gpt4", WordPattern::gpt4},
                                {"llama3", WordPattern::llama3},
                                {"qwen2", WordPattern::qwen2}})
    if (name == known) return pattern;
  throw wrong("--pattern wants gpt2, gpt4, llama3 or qwen2, found \"" + name + "\"")
      .help("--pattern llama3");
}

// --out: a folder without a tokenizer, which may hold a model's config.json.
fs::path output(const Call& call) {
  const fs::path out = call.value("out");
  std::error_code failed;
  if (fs::exists(out, failed) && !fs::is_directory(out, failed))
    throw wrong("--out " + out.string() + " is a file").help("--out names a folder");
  for (const char* name : {kTokenizerFile, kConfigFile})
    if (fs::exists(fs::symlink_status(out / name, failed)) && !call.has("force"))
      throw wrong("--out " + out.string() + " has a " + name + " already")
          .help("--force replaces it once the new one is complete")
          .help("--out another-folder");
  // Whoever finds them beside the new ones takes them for its own.
  for (const char* name : {"tokenizer.model", "tekken.json", "vocab.json", "merges.txt",
                           "special_tokens_map.json", "added_tokens.json"})
    if (fs::exists(fs::symlink_status(out / name, failed)))
      throw wrong("--out " + out.string() + " has the " + name + " of another tokenizer")
          .help("move it to another folder")
          .help("--out another-folder");
  return out;
}

// The tokens of --special, then those that a role names and --special does not.
std::vector<std::string> special_tokens(const Call& call, const tokenizer::TokenRoles& roles) {
  std::vector<std::string> out;
  for (const std::string& token : call.values("special")) {
    if (std::find(out.begin(), out.end(), token) != out.end())
      throw wrong("--special " + token + " is given twice").help("give it once");
    out.push_back(token);
  }
  for (const std::optional<std::string>* role : {&roles.bos, &roles.eos, &roles.pad})
    if (*role && std::find(out.begin(), out.end(), **role) == out.end()) out.push_back(**role);
  for (const std::string& token : out) {
    if (token.empty()) throw wrong("a special token is empty").help("--special '<|im_start|>'");
    if (token.size() > tokenizer::TokenFinder::kMaxBytes)
      throw wrong("a special token has " + std::to_string(token.size()) + " bytes, more than " +
                  std::to_string(tokenizer::TokenFinder::kMaxBytes))
          .help("--special '<|im_start|>'");
    if (base::first_invalid(token) < token.size())
      throw wrong("the special token " + report::printable(token) + " is not UTF-8")
          .help("--special '<|im_start|>'");
  }
  return out;
}

tokenizer::TokenRoles roles_of(const Call& call) {
  tokenizer::TokenRoles out;
  out.eos = call.value("eos", "<|endoftext|>");
  if (call.has("bos")) out.bos = call.value("bos");
  if (call.has("pad")) out.pad = call.value("pad");
  out.max_length = call.number("max-length", 1);
  return out;
}

tokenizer::TrainerOptions trainer_options(const Call& call, const tokenizer::TokenRoles& roles) {
  tokenizer::TrainerOptions out;
  out.special = special_tokens(call, roles);
  out.min_frequency = call.number("min-frequency", 0).value_or(2);
  if (auto most = call.number("max-token-length", 2))
    out.max_token_length = static_cast<size_t>(*most);
  if (auto most = call.number("limit-alphabet", 1))
    out.limit_alphabet = static_cast<size_t>(std::min<int64_t>(*most, 256));
  const int64_t bytes = static_cast<int64_t>(out.limit_alphabet.value_or(256)),
                least = bytes + static_cast<int64_t>(out.special.size()),
                wanted = call.number("vocab-size", 1).value();
  // Ids have 31 bits where tokenizers are read.
  constexpr int64_t kMost = int64_t{1} << 24;
  if (wanted < least)
    throw wrong("--vocab-size " + std::to_string(wanted) +
                " is too small: " + report::counted(bytes, "byte", "bytes") + " and " +
                report::counted(least - bytes, "special token", "special tokens") + " are " +
                std::to_string(least) + " tokens before the first merge")
        .help("--vocab-size 32000");
  if (wanted > kMost)
    throw wrong("--vocab-size " + std::to_string(wanted) + " is more than " + std::to_string(kMost))
        .help("--vocab-size 128000");
  out.vocab_size = static_cast<size_t>(wanted);
  return out;
}

struct Made {
  fs::path out;
  std::vector<std::string> files;
  tokenizer::TrainerOptions options;
  tokenizer::TokenRoles roles;
  tokenizer::TrainedBpe trained;
  tokenizer::CountedText text;
  double seconds = 0;

  double bytes_per_token() const {
    return static_cast<double>(text.words.bytes()) /
           static_cast<double>(std::max<int64_t>(trained.text_tokens, 1));
  }
  size_t merged() const { return trained.merges.size(); }
  int64_t id_of(const std::string& token) const {
    return std::find(options.special.begin(), options.special.end(), token) -
           options.special.begin();
  }
};

json::value shown(const std::optional<std::string>& token) {
  return token ? json::value(*token) : json::value(nullptr);
}

void tell_json(Call& call, const Made& made) {
  call.print_json(json::object{
      {"out", made.out.string()},
      {"vocab_size", made.trained.tokens.size()},
      {"merges", made.merged()},
      {"special", json::array(made.options.special.begin(), made.options.special.end())},
      {"eos_token", shown(made.roles.eos)},
      {"bos_token", shown(made.roles.bos)},
      {"pad_token", shown(made.roles.pad)},
      {"files", made.files.size()},
      {"documents", made.text.walked.documents},
      {"bytes", made.text.words.bytes()},
      {"words", made.text.words.words()},
      {"different_words", made.text.words.size()},
      {"tokens", made.trained.text_tokens},
      {"bytes_per_token", made.bytes_per_token()},
      {"lost_bytes", made.trained.lost_bytes},
      {"seconds", made.seconds}});
}

std::string special_text(const Made& made) {
  std::string out;
  for (size_t id = 0; id < made.options.special.size(); ++id) {
    const std::string& token = made.options.special[id];
    std::string roles;
    for (auto [name, role] :
         {std::pair("eos", &made.roles.eos), {"bos", &made.roles.bos}, {"pad", &made.roles.pad}})
      if (*role == token) roles += std::string(" ") + name;
    out += (id > 0 ? ", " : "") + std::to_string(id) + " " + report::printable(token) + roles;
  }
  return out;
}

void tell(Call& call, const Made& made) {
  const size_t tokens = made.trained.tokens.size();
  auto count = [](auto number) { return report::human_count(static_cast<int64_t>(number)); };
  if (tokens < made.options.vocab_size)
    call.notice("the text gives " + count(tokens) + " tokens, fewer than --vocab-size " +
                std::to_string(made.options.vocab_size) + ": no pair is left that is there " +
                report::counted(std::max<int64_t>(made.options.min_frequency, 1), "time", "times") +
                (made.options.max_token_length ? " and short enough" : ""));
  if (made.trained.lost_bytes > 0)
    call.notice(count(made.trained.lost_bytes) +
                " bytes of the text are none of the bytes that --limit-alphabet leaves, and vanish "
                "when it is encoded");
  if (call.json) return tell_json(call, made);
  const std::string ratio = text::format("%.2f", made.bytes_per_token());
  const std::string folder = report::printable(made.out.string());
  call.out.write(report::table(
      call.out_style,
      {{"tokenizer", report::printable((made.out / kTokenizerFile).string())},
       {"tokens", count(tokens) + " (vocab_size)"},
       {"special", special_text(made)},
       {"merges", count(made.merged())},
       {"text", report::counted(static_cast<int64_t>(made.files.size()), "file", "files") + ", " +
                    report::human_bytes(made.text.words.bytes()) + ", " +
                    count(made.text.words.words()) + " words, of which " +
                    count(made.text.words.size()) + " differ"},
       {"as tokens", count(made.trained.text_tokens) + ", " + ratio + " bytes each"},
       {"time", time_taken(made.seconds)}}));
  call.out.write("\nThe model's config.json, best in the same folder, says vocab_size = " +
                 std::to_string(tokens) +
                 " and eos_token_id = " + std::to_string(made.id_of(*made.roles.eos)) +
                 ". A job that learns text with it:\n  [dataset]\n  kind = \"text\"\n  path = " +
                 quoted_toml(call.positional(0)) +
                 "\n  tokenizer = " + quoted_toml(made.out.string()) +
                 "\nFor rows of chats it is dataset.jsonl.tokenizer.\n");
}

// Both files appear whole, the one that is looked for last.
void write(const Made& made, WordPattern pattern) {
  const std::string tokenizer = tokenizer::laid_out(
      tokenizer::tokenizer_json(made.trained, made.options, pattern, made.roles));
  base::write_durably(made.out / kConfigFile,
                      report::pretty_json(tokenizer::tokenizer_config(made.roles)));
  base::write_durably(made.out / kTokenizerFile, tokenizer);
}

int run_train_tokenizer(Call& call) {
  want_flags(call, "tokenizer train",
             {{"vocab-size", "N, the number of tokens"},
              {"out", "FOLDER, where the tokenizer is written"}},
             "meshwright tokenizer train 'data/*.txt' --vocab-size 32000 --out model");
  Made made;
  made.out = output(call);
  made.roles = roles_of(call);
  made.options = trainer_options(call, made.roles);
  const WordPattern pattern = pattern_of(call.value("pattern", "llama3"));
  const TextOptions texts = text_options(call);
  made.files = text_files(call, "train on");
  // Before the work: a folder that cannot be made is told at once.
  std::error_code failed;
  const bool there = fs::exists(made.out, failed);
  base::make_folders(made.out);

  const auto begin = std::chrono::steady_clock::now();
  const bool live = ::isatty(2) == 1;
  try {
    {
      report::ByteProgress progress(call.err, call.err_style, live, "counting words",
                                    bytes_of(made.files));
      made.text = tokenizer::count_words(made.files,
                                         {pattern, texts.documents, texts.text_key, texts.threads},
                                         [&](int64_t bytes) { progress.add(bytes); });
    }
    if (made.text.words.size() == 0)
      throw Error(ErrorCode::bad_dataset, "the files hold no text: nothing was written")
          .help("blank lines are no documents; --documents file");
    {
      auto done = static_cast<int64_t>(made.options.special.size()) + 256;
      report::WorkProgress progress(call.err, call.err_style, live,
                                    report::WorkProgress::Unit::steps, "merging",
                                    static_cast<int64_t>(made.options.vocab_size) - done);
      made.trained = tokenizer::train_bpe(made.text.words, made.options, [&](size_t tokens) {
        progress.add(static_cast<int64_t>(tokens) - done);
        done = static_cast<int64_t>(tokens);
      });
    }
    write(made, pattern);
  } catch (...) {
    if (!there) fs::remove(made.out, failed);  // which has nothing in it
    throw;
  }
  made.seconds = base::ms_since(begin) / 1000;
  tell(call, made);
  return 0;
}

}  // namespace

Verb tokenizer_train_verb() {
  return declare(run_train_tokenizer, R"(
tokenizer train FILES...
Make a tokenizer of text files: byte-level BPE of a given size

The folder gets tokenizer.json and tokenizer_config.json, which Meshwright and transformers read.
Vocabulary and merges are those of the tokenizers library, whatever the number of threads.
  meshwright tokenizer train corpus --vocab-size 32000 --out model
  meshwright tokenizer train rows.jsonl --documents json --vocab-size 64000 --special '<|im_start|>' --special '<|im_end|>' --out model
FILES are files, folders and quoted patterns; *.gz and *.zst are unpacked, and of *.parquet the
rows are read as with --documents json. Memory holds the words of the text, each once: of
much more than ten gigabytes a part gives the same tokenizer.

--vocab-size N          Number of tokens: special ones, 256 bytes and what is merged of them.
--out FOLDER            The folder to write to, perhaps that of the model's config.json.
--force                 Replace a tokenizer that is already there.
--special TOKEN...      A special token, which gets the next id from 0 on. Repeatable.
--eos TOKEN             The special token that ends a text. Default: <|endoftext|>.
--bos TOKEN             The one that begins a text, and is put before each. Default: none.
--pad TOKEN             The one that fills rows up. Default: none.
--max-length N          model_max_length of tokenizer_config.json, in tokens. Default: none.
--pattern NAME=gpt2|gpt4|llama3|qwen2
                        How text is cut into words: as by this model. Default: llama3.
--min-frequency N       Merge only what is there this often. Default: 2.
--max-token-length N    Make no token of N bytes or more by merging longer ones. Default: no limit.
--limit-alphabet N      Make tokens of the N most frequent bytes of the text alone. Default: of
                        all 256, so that every text can be encoded.
--documents KIND        What a document is: file, line (every line that is not blank), or json (a
                        JSON object on every line). Default: file.
--text-key KEY          The field that holds the text of --documents json. Default: text.
--threads N             Count in N threads; the tokenizer is the same. Default: one a core.
--json
)");
}

}  // namespace meshwright::cli
