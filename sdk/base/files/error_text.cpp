#include "sdk/base/files/error_text.h"

#include <algorithm>

#include "sdk/base/files/json_codec.h"

namespace meshwright {

BOOST_DESCRIBE_STRUCT(Origin, (), (source, file, line, column))

namespace base {

namespace {

struct ErrorParts {
  ErrorCode code;
  std::string message, key;
  Origin origin;
  std::vector<std::string> helps, notes;
};
BOOST_DESCRIBE_STRUCT(ErrorParts, (), (code, message, key, origin, helps, notes))

}  // namespace

std::string error_text(const Error& error) {
  return json_text(ErrorParts{error.code(), error.message(), error.key(), error.origin(),
                              error.helps(), error.notes()});
}

std::optional<Error> error_in(const std::string& text) try {
  const auto parts = read_json_text<ErrorParts>(text);
  const auto known = error_catalog();
  if (std::none_of(known.begin(), known.end(),
                   [&](const ErrorInfo& info) { return info.code == parts.code; }))
    return std::nullopt;
  Error error(parts.code, parts.message);
  if (!parts.key.empty()) error.key(parts.key);
  error.at(parts.origin);
  for (const std::string& help : parts.helps) error.help(help);
  for (const std::string& note : parts.notes) error.note(note);
  return error;
} catch (const JsonProblem&) {
  return std::nullopt;
}

}  // namespace base

}  // namespace meshwright
