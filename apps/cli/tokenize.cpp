// tokenize: text files to one file of tokens.
#include <unistd.h>

#include <algorithm>
#include <boost/json/object.hpp>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <thread>

#include "apps/cli/verb.h"
#include "engine/data/token_writer.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/files/mapped_file.h"
#include "sdk/base/files/strict_json.h"
#include "sdk/base/terminal/progress.h"
#include "sdk/text/corpus/corpus.h"
#include "sdk/text/tokenizer/tokenizer.h"
#include "sdk/text/tokenizer/young.h"

namespace meshwright::cli {
namespace {

namespace json = boost::json;
namespace fs = std::filesystem;
using tokenizer::Documents;

Error wrong(const std::string& message) { return {ErrorCode::usage, message}; }

// A JSON object beside the tokenizer; empty when the file is not there.
json::object settings(const fs::path& file) {
  std::error_code failed;
  if (!fs::is_regular_file(file, failed)) return {};
  const std::string text = base::read_foreign(file, base::kSmallFile, ErrorCode::file_unreadable);
  try {
    json::value parsed = base::parse_strictly(text, {.depth = 32, .elements = 1 << 20});
    return parsed.is_object() ? parsed.as_object() : json::object();
  } catch (const base::JsonProblem& problem) {
    throw Error(ErrorCode::bad_tokenizer, file.string() + ": " + problem.what + " (at byte " +
                                              std::to_string(problem.offset) + ")");
  }
}

// The end-of-text token that the files beside a tokenizer.json name.
std::optional<int64_t> eos_of(const tokenizer::Tokenizer& tokenizer, const fs::path& folder) {
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const json::object all = settings(folder / name);
    const json::value* token = all.if_contains("eos_token");
    if (token != nullptr && token->is_object()) token = token->get_object().if_contains("content");
    if (token == nullptr || !token->is_string()) continue;
    const json::string& text = token->get_string();
    if (std::optional<int64_t> id = tokenizer.id_of({text.data(), text.size()})) return id;
  }
  for (const char* name : {"generation_config.json", "config.json"}) {
    json::object all = settings(folder / name);
    const json::value* id = all.if_contains("eos_token_id");
    if (id != nullptr && id->is_array() && !id->as_array().empty()) id = &id->as_array()[0];
    if (id != nullptr && id->is_int64() && id->as_int64() >= 0 && id->as_int64() < tokenizer.size())
      return id->as_int64();
  }
  return std::nullopt;
}

int64_t document_end(const tokenizer::Tokenizer& tokenizer, const fs::path& folder,
                     const std::string& wanted) {
  if (wanted == "eos") {
    if (std::optional<int64_t> id = eos_of(tokenizer, folder)) return *id;
    throw wrong(
        "--document-end eos: no eos_token in tokenizer_config.json or special_tokens_map.json of " +
        folder.string() + ", and no eos_token_id in generation_config.json or config.json")
        .help("--document-end '<|endoftext|>', the token as the tokenizer has it")
        .help("--document-end 2, its id");
  }
  // A number is an id, also where a token is written like it: no text ends with the digit three.
  int64_t id = -1;
  auto [end, failed] = std::from_chars(wanted.data(), wanted.data() + wanted.size(), id);
  if (failed == std::errc() && end == wanted.data() + wanted.size()) {
    if (id >= 0 && id < tokenizer.size()) return id;
  } else if (std::optional<int64_t> named = tokenizer.id_of(wanted)) {
    return *named;
  }
  throw wrong("--document-end " + wanted +
              ": the tokenizer has no such token, and its ids are 0 to " +
              std::to_string(tokenizer.size() - 1))
      .help("--document-end eos, the token that the folder names as the end of a text");
}

std::vector<std::string> inputs(const Call& call, const fs::path& out) {
  std::vector<std::string> files;
  std::error_code failed;
  for (const std::string& pattern : call.positionals) {
    data::DatasetConfig config;
    config.path = pattern;
    std::vector<std::string> found;
    try {
      found = data::list_files(config);
    } catch (const Error& error) {
      // What it says of a key of a configuration is an argument here.
      if (error.message().find("no file with contents") == std::string::npos) throw;
      Error none(error.code(),
                 "nothing to tokenize: no file with contents matches \"" + pattern + "\"");
      if (const fs::path here = fs::current_path(failed); !failed)
        none.help("relative paths start at the current folder, " + here.string());
      throw none;
    }
    for (const std::string& file : found) {
      if (fs::equivalent(file, out, failed))
        throw wrong("--out " + out.string() + " is one of the files to tokenize")
            .help("--out another.bin");
      files.push_back(file);
    }
  }
  return files;
}

int64_t size_of(const std::vector<std::string>& files) {
  int64_t bytes = 0;
  std::error_code failed;
  for (const std::string& file : files)
    if (uintmax_t size = fs::file_size(file, failed); !failed) bytes += static_cast<int64_t>(size);
  return bytes;
}

Documents documents_of(const std::string& text) {
  if (text == "file") return Documents::files;
  if (text == "line") return Documents::lines;
  if (text == "json") return Documents::json_lines;
  throw wrong("--documents wants file, line or json, found \"" + text + "\"")
      .help("--documents line")
      .help("--documents json");
}

// --out, which must not be there yet unless --force replaces it.
fs::path output(const Call& call) {
  fs::path out = call.value("out");
  std::error_code failed;
  if (fs::is_directory(out, failed))
    throw wrong("--out " + out.string() + " is a folder")
        .help("--out " + (out / "train.bin").string());
  if (fs::exists(fs::symlink_status(out, failed)) && !call.has("force"))
    throw wrong("--out " + out.string() + " is already there")
        .help("--force replaces it once the new one is complete")
        .help("--out another.bin");
  return out;
}

// `folder`: where the tokenizer lies, with what else is said of it.
tokenizer::CorpusOptions read_options(const Call& call, const tokenizer::Tokenizer& tokenizer,
                                      const fs::path& folder) {
  tokenizer::CorpusOptions options;
  options.documents = documents_of(call.value("documents", "file"));
  options.special = !call.has("no-special");
  options.text_key = call.value("text-key", "text");
  if (call.has("text-key") && options.documents != Documents::json_lines)
    throw wrong("--text-key is for --documents json")
        .help("--documents json --text-key " + options.text_key);
  if (call.has("document-end"))
    options.document_end = document_end(tokenizer, folder, call.value("document-end"));
  options.threads = static_cast<int>(std::min<int64_t>(
      call.number("threads", 1).value_or(std::max<int64_t>(std::thread::hardware_concurrency(), 1)),
      1024));
  return options;
}

// What was made, and how fast.
struct Made {
  fs::path out;
  int64_t files = 0, vocabulary = 0;
  std::string dtype;
  std::optional<int64_t> document_end;
  tokenizer::CorpusCounts counts;
  double seconds = 0;
};

void tell(Call& call, const Made& made) {
  const tokenizer::CorpusCounts& counts = made.counts;
  if (counts.whole > 0)
    call.err.write(report::format_notice(
        call.err_style, "pieces of up to " + report::human_bytes(counts.whole) +
                            " were encoded at once, because this tokenizer's pattern is not known "
                            "to allow a cut; that takes memory, not accuracy"));
  if (counts.young > 0)
    call.err.write(report::format_notice(call.err_style, tokenizer::tell_young(counts.young)));
  if (call.json) {
    call.print_json(
        json::object{{"out", made.out.string()},
                     {"tokens", counts.tokens},
                     {"bytes", counts.bytes},
                     {"files", made.files},
                     {"documents", counts.documents},
                     {"young_characters", counts.young},
                     {"dtype", made.dtype},
                     {"vocab_size", made.vocabulary},
                     {"document_end",
                      made.document_end ? json::value(*made.document_end) : json::value(nullptr)},
                     {"seconds", made.seconds}});
    return;
  }
  auto rate =
      static_cast<int64_t>(static_cast<double>(counts.bytes) / std::max(made.seconds, 1e-3));
  const std::string out = report::printable(made.out.string());
  call.out.write(out + ": " + report::human_count(counts.tokens) + " tokens (" + made.dtype +
                 ") of " + report::counted(counts.documents, "document", "documents") + " in " +
                 report::counted(made.files, "file", "files") + ", " +
                 report::human_bytes(counts.bytes) + " in " + report::human_duration(made.seconds) +
                 ", " + report::human_bytes(rate) + "/s\n" +
                 "set dataset.kind = \"tokens\" and dataset.path = \"" + out +
                 "\" to train on them; the model's vocab_size has to be at least " +
                 std::to_string(made.vocabulary) + "\n");
}

int run_tokenize(Call& call) {
  for (const char* flag : {"tokenizer", "out"})
    if (call.value(flag).empty())
      throw wrong(std::string("meshwright tokenize wants --") + flag +
                  (std::string_view(flag) == "out" ? " X.bin, the file of tokens to write"
                                                   : " FOLDER, where tokenizer.json lies"))
          .help(
              "meshwright tokenize 'data/*.txt' --tokenizer models/Llama-3.2-1B --out "
              "data/train.bin");
  const fs::path out = output(call);
  fs::path file = call.value("tokenizer"), folder = file;
  std::error_code failed;
  if (fs::is_directory(file, failed))
    file /= "tokenizer.json";
  else
    folder = file.has_parent_path() ? file.parent_path() : ".";
  tokenizer::Tokenizer tokenizer = tokenizer::Tokenizer::load(file);
  const tokenizer::CorpusOptions options = read_options(call, tokenizer, folder);
  std::vector<std::string> files = inputs(call, out);

  auto begin = std::chrono::steady_clock::now();
  data::TokenWriter writer(out, tokenizer.size());
  tokenizer::CorpusCounts counts;
  {
    report::ByteProgress progress(call.err, call.err_style, ::isatty(2) == 1, "tokenizing",
                                  size_of(files));
    counts = tokenizer::encode_files(tokenizer, files, options,
                                     [&](std::span<const int64_t> ids, int64_t bytes) {
                                       writer.append(ids);
                                       progress.add(bytes);
                                     });
  }
  if (counts.tokens == 0)
    throw Error(ErrorCode::bad_dataset, "the files hold no text: nothing was written")
        .help("blank lines are no documents; --documents file");
  writer.finish();
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  tell(call, {out, static_cast<int64_t>(files.size()), tokenizer.size(), writer.type_name(),
              options.document_end, counts, seconds});
  return 0;
}

}  // namespace

Verb tokenize_verb() {
  return declare(run_tokenize, R"(
tokenize FILES...
Turn text files into one file of tokens

The file is what dataset.kind = "tokens" reads; ids are those of the tokenizers library.
  meshwright tokenize 'data/*.txt' --tokenizer models/Llama-3.2-1B --out data/train.bin --document-end eos
  meshwright tokenize rows.jsonl --documents json --text-key text --tokenizer models/Qwen3-0.6B --out data/train.bin
FILES are files, folders and quoted patterns, each sorted by name. A document gets what the
tokenizer's template puts around a text, a beginning-of-text token perhaps, and at its end the
token of --document-end. Tokens have two bytes where the vocabulary allows it, else four.

--tokenizer FOLDER    A folder with tokenizer.json (byte-level BPE), or that file.
--out X.bin           The file to write. It appears once it is complete.
--force               Replace a file that is already there.
--documents KIND      What a document is: file, line (every line that is not blank), or json (a
                      JSON object on every line). Default: file.
--text-key KEY        The field that holds the text of --documents json. Default: text.
--document-end TOKEN  Put this token after every document: eos, a token or an id. Default: nothing.
--no-special          Leave out what the tokenizer's template puts around a document.
--threads N           Encode in N threads; the tokens are the same. Default: one a core.
--json
)");
}

}  // namespace meshwright::cli
