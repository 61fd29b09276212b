#include <charconv>
#include <cmath>
#include <filesystem>
#include <set>

#include "apps/cli/verb.h"
#include "sdk/base/terminal/torchrun.h"
#include "sdk/base/used_up.h"

namespace meshwright::cli {

std::string Call::value(const std::string& flag, const std::string& fallback) const {
  auto it = flags.find(flag);
  return it == flags.end() || it->second.empty() ? fallback : it->second.back();
}

std::vector<std::string> Call::values(const std::string& flag) const {
  auto it = flags.find(flag);
  return it == flags.end() ? std::vector<std::string>() : it->second;
}

std::optional<int64_t> Call::number(const std::string& flag, int64_t least) const {
  if (!has(flag)) return std::nullopt;
  std::string text = value(flag);
  int64_t number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < least)
    throw Error(ErrorCode::usage, "--" + flag + " wants an integer of at least " +
                                      std::to_string(least) + ", found \"" + text + "\"")
        .help("--" + flag + " " + std::to_string(least));
  return number;
}

std::optional<double> Call::finite(const std::string& flag) const {
  std::string text = value(flag);
  double number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && std::isfinite(number) ? std::optional(number) : std::nullopt;
}

void Call::notice(const std::string& text) {
  Diagnostics one;
  one.notice(text);
  say(one);
}

void Call::say(const Diagnostics& diagnostics) {
  if (quiet) return;
  std::set<std::string> said;
  for (const std::string& text : diagnostics.notices())
    if (said.insert(text).second) err.write(report::format_notice(err_style, text));
  for (const std::string& text : diagnostics.warnings())
    if (said.insert(text).second) err.write(report::format_warning(err_style, text));
  err.flush();
}

int Call::fail(std::span<const Error> given) {
  std::vector<Error> errors = detail::by_cause(given);
  // Where relative paths begin: every file of such a path is "not there".
  std::error_code gone;
  if (static_cast<void>(std::filesystem::current_path(gone)); gone && !errors.empty())
    errors.front().help(
        "the folder that this program was started in has been removed: start it in "
        "one that is there");
  std::string retries = errors.empty() ? "" : report::last_words_for_torchrun(errors.front());
  if (!errors.empty() && !failure) failure = errors.front();
  if (json) {
    print_json(report::errors_json(errors));
  } else {
    for (size_t i = 0; i < errors.size(); ++i)
      err.write((i > 0 ? "\n" : "") + report::format_error(err_style, errors[i]));
    if (errors.size() > 1)
      err.write('\n' + report::counted(static_cast<int64_t>(errors.size()), "error", "errors") +
                '\n');
    if (!retries.empty()) err.write(report::format_notice(err_style, retries));
    err.flush();
  }
  return errors.empty() ? 0 : exit_status(errors.front().code());
}

}  // namespace meshwright::cli
