// Errors that tell a user what to change: a stable code, the key and place, what was found, and
// settings that work.
//
//   throw Error(ErrorCode::world_not_divisible, "world size 8 is not divisible by tp 3")
//       .key("distributed.tp_size").help("set distributed.tp_size = 2");
//
// Error and Diagnostics are values, not shared between threads. Only Error may leave a
// plugin.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/export.h"

namespace meshwright {

// The kind of a failure.
enum class ErrorKind : uint8_t {
  value,
  type,
  unknown_key,
  runtime,
  not_implemented,
  file,
  internal
};

// Stable numbers, printed as E0203. Hundreds: 1 usage, 2 configuration, 3 the plan does not fit, 4
// plugins, 5 ranks and devices, 6 collectives, 7 data and weights, 8 numerics, 9 internal.
enum class ErrorCode : uint16_t {
#define MESHWRIGHT_ERROR(name, number, kind, title, explanation) name = number,
#include "meshwright/error_codes.def"
#undef MESHWRIGHT_ERROR
};

struct ErrorInfo {
  ErrorCode code;
  const char* name;  // identifier, e.g. "world_not_divisible"
  ErrorKind kind;
  const char* title;
  const char* explanation;  // a paragraph for `config explain`
};

MESHWRIGHT_API std::span<const ErrorInfo> error_catalog();
MESHWRIGHT_API const ErrorInfo& error_info(ErrorCode code);
// "E0203"
MESHWRIGHT_API std::string code_string(ErrorCode code);
// Process exit status: 1 internal, 2 usage or configuration (1xx, 2xx, 4xx), 3 the plan does not
// fit (3xx), 4 ranks and devices (5xx), 5 numerics (8xx), 6 collectives (6xx), 7 data and weights
// (7xx).
MESHWRIGHT_API int exit_status(ErrorCode code);

// Where a value came from. line and column count from 1; 0 = unknown (a value from --set has no
// line).
struct Origin {
  enum class Source : uint8_t { builtin, file, command_line, environment, api };
  Source source = Source::builtin;
  std::string file;
  int line = 0;
  int column = 0;
};

class MESHWRIGHT_API Error : public std::exception {
 public:
  Error(ErrorCode code, std::string message);
  Error(const Error&);
  Error(Error&&) noexcept;
  Error& operator=(const Error&);
  Error& operator=(Error&&) noexcept;
  ~Error() override;

  // Builders; each returns *this. help() may be called several times: one setting that works, each.
  Error& key(std::string dotted_key);
  Error& about(std::string dotted_key);  // another key whose value the problem depends on
  Error& at(Origin origin);
  Error& help(std::string text);
  Error& note(std::string text);  // context: "while planning the mesh", "plugin acme 1.0 (path)"

  ErrorCode code() const { return code_; }
  ErrorKind kind() const { return error_info(code_).kind; }
  const std::string& message() const { return message_; }
  const std::string& key() const { return key_; }
  // All keys that it is about, key() first.
  std::vector<std::string> keys() const;
  const Origin& origin() const { return origin_; }
  const std::vector<std::string>& helps() const { return helps_; }
  const std::vector<std::string>& notes() const { return notes_; }
  const char* what() const noexcept override { return what_.c_str(); }  // "error[E0301]: message"

 private:
  ErrorCode code_;
  std::string message_, what_, key_;
  Origin origin_;
  std::vector<std::string> helps_, notes_, about_;
  std::shared_ptr<const Later> later_;  // room for what later versions add
};

// Collects every problem of one pass, so that a user sees all of them at once.
class MESHWRIGHT_API Diagnostics {
 public:
  Diagnostics() = default;
  // Leaves out what is about one of these keys, whose values are in doubt.
  explicit Diagnostics(std::set<std::string, std::less<>> doubtful);
  void add(Error error);
  // Something accepted but worth a line: an older name, an option without effect. `about`: the keys
  // whose values it depends on.
  void notice(std::string text, const std::vector<std::string>& about = {});
  // Something that probably is not what the user wants.
  void warning(std::string text, const std::vector<std::string>& about = {});
  bool ok() const { return errors_.empty(); }
  const std::vector<Error>& errors() const { return errors_; }
  const std::vector<std::string>& notices() const { return notices_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  void throw_if_any() const;  // throws the first error

 private:
  MESHWRIGHT_LOCAL bool in_doubt(const std::vector<std::string>& keys) const;
  std::set<std::string, std::less<>> doubtful_;
  std::vector<Error> errors_;
  std::vector<std::string> notices_, warnings_;
  std::shared_ptr<const Later> later_;  // room for what later versions add
};

// The candidate closest in spelling to `word` (edit distance at most a third of its length), or "".
MESHWRIGHT_API std::string nearest_name(std::string_view word,
                                        std::span<const std::string> candidates);

}  // namespace meshwright
