#include "sdk/text/tokenizer/read_pattern.h"

namespace meshwright::tokenizer {

ReadPattern read_pattern(const Field& pattern) {
  const Field regex = pattern.at("Regex"), literal = pattern.at("String");
  if (regex.absent() == literal.absent()) pattern.refuse("must hold either Regex or String");
  const bool is_literal = regex.absent();
  const Field& used = is_literal ? literal : regex;
  try {
    return {Pattern(used.string(), is_literal ? Pattern::Syntax::literal : Pattern::Syntax::ruby),
            std::string(used.string()), is_literal};
  } catch (const PatternProblem& problem) {
    used.refuse(shown(used.string()) + " " + problem.what + " (at byte " +
                std::to_string(problem.offset) + " of the pattern)");
  }
}

}  // namespace meshwright::tokenizer
