// How things are shown: colours only on a terminal, aligned tables, errors in the style of rustc,
// JSON for machines.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstdio>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/error.h"

namespace meshwright::report {

// What the output can show.
struct Style {
  bool colour = false;
  bool unicode = true;
  int width = 80;
};
// Looks at the stream, NO_COLOR, TERM, COLUMNS and the locale.
Style style_of(std::FILE* stream);

enum class Tone : uint8_t { plain, bold, dim, red, green, yellow, blue, magenta, cyan };
std::string paint(const Style& style, Tone tone, std::string_view text);
// Columns a UTF-8 text takes on a terminal; colour sequences take none.
size_t display_width(std::string_view text);
// `text` followed (or, right, led) by spaces up to `width` columns.
std::string pad(std::string_view text, size_t width);
std::string pad_left(std::string_view text, size_t width);
// Foreign text as it may be shown: valid UTF-8 without control characters other than newlines, and
// without those that turn the order of what is read, so that no value can steer the terminal or say
// something else than it holds.
std::string printable(std::string_view text);
// The same of a text that is put together already: paint()'s own sequences and tabs stay.
std::string screened(std::string_view text);
// Foreign text as a cell of comma-separated values, before its quotes: printable, and with ' in
// front where a spreadsheet would compute it. Numbers are none.
std::string csv_cell(std::string_view text);
// Lines of at most `width` columns, broken at spaces (and within words only when one is too long,
// after a dot where it has one).
std::vector<std::string> wrap(std::string_view text, size_t width);

// Rows of cells as aligned columns; the first row is the header. `right`: indices of columns
// aligned right. A table wider than the style breaks the cells of its widest left-aligned column
// over several lines.
std::string table(const Style& style, const std::vector<std::vector<std::string>>& rows,
                  std::span<const size_t> right = {});

// "error[E0203]: message", then " --> file:line:column" with the source line and a caret, notes,
// and help lines.
std::string format_error(const Style& style, const Error& error);
// "notice: text" and "warning: text", one line each.
std::string format_notice(const Style& style, std::string_view text);
std::string format_warning(const Style& style, std::string_view text);
// The machine form: {"error": {...first...}, "errors": [...]}.
boost::json::object errors_json(std::span<const Error> errors);
std::string pretty_json(const boost::json::value& value);

// 1.5 GiB, 12.0 MiB, 512 B.
std::string human_bytes(int64_t bytes);
// 1,234,567
std::string human_count(int64_t count);
// "1.20 s", "13.1 ms", "40 us".
std::string human_seconds(double seconds);
// "1 error", "3 errors", "2 matches" ("match" + "es" by the caller's plural).
std::string counted(int64_t count, std::string_view singular, std::string_view plural);
// [4, 1024]
std::string shape_text(std::span<const int64_t> shape);

// A stream whose failures are noticed, or, for what is only said beside the results, ignored. Not
// thread-safe.
class Output {
 public:
  enum class Loss : uint8_t { noticed, ignored };
  Output(std::FILE* stream, std::string name, Loss loss = Loss::noticed)
      : stream_(stream), name_(std::move(name)), loss_(loss) {}
  // All three throw WriteFailed when the stream takes no more, unless that is ignored.
  // For people: screened(), whatever of it is foreign.
  void write(std::string_view text);
  // For programs and files, byte by byte.
  void write_data(std::string_view bytes);
  void flush();
  // After a failure: drops what could not be written, so that nobody tries it again.
  void give_up();

 private:
  std::FILE* stream_;
  std::string name_;
  Loss loss_;
};

// The reader went away (quiet), or the device is full (worth a message).
class WriteFailed : public std::exception {
 public:
  WriteFailed(const std::string& stream, int error);
  bool closed_pipe() const { return closed_pipe_; }
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  bool closed_pipe_;
  std::string what_;
};

// What a rank can tell torchrun about its end.

using Variables = std::function<std::optional<std::string>(const std::string&)>;

// Writes the error to the file that torchrun names in TORCHELASTIC_ERROR_FILE, so that its summary
// of the failure says what happened
// ("traceback : error[E0212]: ..."). Does nothing without torchrun, or when the file is there
// already: the first error is the cause.
void tell_torchrun(const Error& error, const Variables& variables);

// torchrun starts the ranks again after any exit status but 0, and nothing that a rank does can
// stop it. For a failure that will come again (a mistake in the file, sizes that do not fit,
// numerics, data) a line that says so; empty when no attempt is left, or it may heal.
std::string vain_retries(int exit_status, const Variables& variables);

// Both, with the variables of this process; returns the line.
std::string last_words_for_torchrun(const Error& error);

}  // namespace meshwright::report
