#include "engine/launch/rendezvous/error_text.h"
#include "engine/launch/rendezvous/separators.h"
#include "sdk/base/host_facts.h"

#include <unistd.h>

#include <charconv>
#include <vector>

namespace meshwright::rendezvous {

namespace {

// Code, message, key, origin (source, file, line, column) and the number of helps come first, then
// helps, then notes.
constexpr size_t kFirstHelp = 8;

bool read_number(const std::string& text, int64_t& out) {
  auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), out);
  return failed == std::errc() && end == text.data() + text.size();
}

bool known(int64_t code) {
  for (const ErrorInfo& info : error_catalog())
    if (static_cast<int64_t>(info.code) == code) return true;
  return false;
}

}  // namespace

std::string encode_error(const Error& error) {
  const Origin& origin = error.origin();
  std::string out = std::to_string(static_cast<int>(error.code()));
  for (const std::string& part :
       {error.message(), error.key(), std::to_string(static_cast<int>(origin.source)), origin.file,
        std::to_string(origin.line), std::to_string(origin.column),
        std::to_string(error.helps().size())})
    out += kUnitSeparator + part;
  for (const std::string& help : error.helps()) out += kUnitSeparator + help;
  for (const std::string& note : error.notes()) out += kUnitSeparator + note;
  return out;
}

Error decode_error(const std::string& text) {
  std::vector<std::string> parts{""};
  for (char c : text)
    if (c == kUnitSeparator)
      parts.emplace_back();
    else
      parts.back() += c;
  int64_t code = 0, source = 0, line = 0, column = 0, helps = 0;
  bool whole = parts.size() >= kFirstHelp && read_number(parts[0], code) && known(code) &&
               read_number(parts[3], source) && read_number(parts[5], line) &&
               read_number(parts[6], column) && read_number(parts[7], helps);
  if (!whole)
    return {
        ErrorCode::rank_failed,
        "another rank refused the job in words that this one cannot read: " + text.substr(0, 200)};
  Error error(static_cast<ErrorCode>(code), parts[1]);
  if (!parts[2].empty()) error.key(parts[2]);
  error.at({static_cast<Origin::Source>(source), parts[4], static_cast<int>(line),
            static_cast<int>(column)});
  for (size_t i = kFirstHelp; i < parts.size(); ++i)
    i < kFirstHelp + static_cast<size_t>(helps) ? error.help(parts[i]) : error.note(parts[i]);
  return error;
}

std::string name_here(int64_t rank) {
  return "rank " + std::to_string(rank) + " (" + host_name() + ")";
}

}  // namespace meshwright::rendezvous
