// Cuts a template into text and the tokens of its tags, as Jinja does with trim_blocks and
// lstrip_blocks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace meshwright::chat {

enum class Lex : uint8_t {
  text,
  output_begin,
  output_end,
  block_begin,
  block_end,
  name,
  string,
  integer,
  real,
  sign,  // operators and brackets, by their spelling
  end
};

struct Token {
  Lex kind;
  int line;
  std::string text;
};

// Not a template: what is wrong and where.
struct SyntaxProblem {
  int line;
  std::string what;
};

// The last token is `end`. Throws SyntaxProblem.
std::vector<Token> tokens_of(std::string_view source);

}  // namespace meshwright::chat
