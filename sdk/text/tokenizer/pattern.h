// Regular expressions as a tokenizer.json has them: written for Oniguruma with Ruby's syntax, run
// by PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace meshwright::tokenizer {

struct PatternProblem {
  size_t offset = 0;  // in the pattern, or the text
  std::string what;   // "uses \\W inside a class, which ..."
};

// The same pattern in PCRE2's syntax, meaning the same. Throws PatternProblem for what has no
// counterpart there.
std::string to_pcre2(std::string_view pattern);

// What one search needs besides the pattern. One per thread, for any number of patterns.
class PatternScratch {
 public:
  PatternScratch();
  ~PatternScratch();
  PatternScratch(const PatternScratch&) = delete;
  PatternScratch& operator=(const PatternScratch&) = delete;

 private:
  friend class Pattern;
  friend class Matches;
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

class Pattern {
 public:
  enum class Syntax { ruby, literal };
  // Throws PatternProblem.
  explicit Pattern(std::string_view pattern, Syntax syntax = Syntax::ruby);
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;
  ~Pattern();
  // Whether it matches at this place. Throws PatternProblem.
  bool matches_at(std::string_view text, size_t at, PatternScratch& scratch) const;

 private:
  friend class Matches;
  struct Code;
  std::unique_ptr<Code> code_;
};

// The matches in a text from left to right, as Oniguruma's binding for Rust gives them: an empty
// match right after a match is none. No pattern takes forever: next() throws PatternProblem when a
// match takes too many steps, or all of them together too long.
class Matches {
 public:
  struct Range {
    size_t begin = 0, end = 0;
  };
  // `text` is valid UTF-8. All must outlive this.
  Matches(const Pattern& pattern, std::string_view text, PatternScratch& scratch)
      : pattern_(pattern), text_(text), scratch_(scratch) {}
  std::optional<Range> next();

 private:
  friend class Pattern;
  std::optional<Range> at(size_t place);
  size_t step(size_t place) const;
  void check_time(size_t place) const;

  const Pattern& pattern_;
  std::string_view text_;
  PatternScratch& scratch_;
  size_t from_ = 0;
  std::optional<size_t> last_end_;
};

}  // namespace meshwright::tokenizer
