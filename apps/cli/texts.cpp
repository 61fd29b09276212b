#include "apps/cli/texts.h"

#include <algorithm>
#include <filesystem>
#include <thread>

#include "engine/data/token_files.h"
#include "meshwright/error.h"
#include "sdk/base/terminal/progress.h"
#include "sdk/base/words.h"

namespace meshwright::cli {

namespace fs = std::filesystem;

namespace {

tokenizer::Documents documents_of(const std::string& text) {
  if (text == "file") return tokenizer::Documents::files;
  if (text == "line") return tokenizer::Documents::lines;
  if (text == "json") return tokenizer::Documents::json_lines;
  throw Error(ErrorCode::usage, "--documents wants file, line or json, found \"" + text + "\"")
      .help("--documents line")
      .help("--documents json");
}

}  // namespace

void want_flags(const Call& call, const std::string& verb,
                std::initializer_list<std::pair<const char*, const char*>> flags,
                const std::string& example) {
  for (const auto& [flag, what] : flags)
    if (call.value(flag).empty())
      throw Error(ErrorCode::usage, "meshwright " + verb + " wants --" + flag + " " + what)
          .help(example);
}

std::vector<std::string> text_files(const Call& call, std::string_view to_do) {
  std::vector<std::string> files;
  std::error_code failed;
  for (const std::string& pattern : call.positionals) {
    data::DatasetConfig config;
    config.path = pattern;
    try {
      for (std::string& file : data::list_files(config)) files.push_back(std::move(file));
    } catch (const Error& error) {
      // What it says of a key of a configuration is an argument here.
      if (error.message().find("no file with contents") == std::string::npos) throw;
      Error none(error.code(), "nothing to " + std::string(to_do) +
                                   ": no file with contents matches \"" + pattern + "\"");
      if (const fs::path here = fs::current_path(failed); !failed)
        none.help("relative paths start at the current folder, " + here.string());
      throw none;
    }
  }
  return files;
}

int64_t bytes_of(const std::vector<std::string>& files) {
  int64_t bytes = 0;
  std::error_code failed;
  for (const std::string& file : files)
    if (uintmax_t size = fs::file_size(file, failed); !failed) bytes += static_cast<int64_t>(size);
  return bytes;
}

TextOptions text_options(const Call& call) {
  TextOptions out;
  out.documents = documents_of(call.value("documents", "file"));
  out.text_key = call.value("text-key", "text");
  if (call.has("text-key") && out.documents != tokenizer::Documents::json_lines)
    throw Error(ErrorCode::usage, "--text-key is for --documents json")
        .help("--documents json --text-key " + out.text_key);
  out.threads = static_cast<int>(std::min<int64_t>(
      call.number("threads", 1).value_or(std::max<int64_t>(std::thread::hardware_concurrency(), 1)),
      1024));
  return out;
}

std::string time_taken(double seconds) {
  return seconds < 1 ? text::format("%.0f ms", std::max(1.0, 1000 * seconds))
                     : report::human_duration(seconds);
}

}  // namespace meshwright::cli
