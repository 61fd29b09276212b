// Syntax errors that say how to mend the line, and limits that keep a hostile file from exhausting
// the parser.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "engine/config/toml_value.h"

namespace meshwright::config {

constexpr size_t kMaxFileBytes = 1 << 20;
constexpr int kMaxDepth = 32;  // of nested lists and tables, and of the parts of one key

struct SyntaxProblem {
  std::string what;
  Place place;
};

// Nesting and dotted keys deeper than kMaxDepth: the parser would recurse as deep.
std::optional<SyntaxProblem> check_limits(std::string_view text);
// E0201 at the place where it can be mended, with the corrected line as help where the mistake is a
// common one.
Error syntax_error(const SyntaxProblem& problem, std::string_view text, const std::string& file);

}  // namespace meshwright::config
