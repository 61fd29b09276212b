#define PCRE2_CODE_UNIT_WIDTH 8
#include "sdk/text/tokenizer/pattern.h"

#include <pcre2.h>

#include <algorithm>
#include <bitset>
#include <chrono>
#include <new>

namespace meshwright::tokenizer {

namespace {

constexpr size_t kMaxPattern = 16384;
// A match looks at so much of the text at first, and at more when it must. That bounds what one
// match can cost.
constexpr size_t kWindow = 4096;

using Clock = std::chrono::steady_clock;

template <auto free_it>
struct Free {
  template <class T>
  void operator()(T* pointer) const {
    free_it(pointer);
  }
};

PCRE2_SPTR bytes_of(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

std::string message_of(int code) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

namespace {

// What a match runs in. Its stack is mapped by the kernel, which a short text would wait for longer
// than it is matched: a thread keeps one for its next text.
struct Room {
  std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>> context{
      pcre2_match_context_create(nullptr)};
  std::unique_ptr<pcre2_jit_stack, Free<pcre2_jit_stack_free>> stack{
      pcre2_jit_stack_create(32 << 10, 8 << 20, nullptr)};

  Room() {
    if (!context) throw std::bad_alloc();
    if (stack) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
    pcre2_set_heap_limit(context.get(), 64 << 10);  // KiB
  }
};

thread_local std::unique_ptr<Room> spare_room;

std::unique_ptr<Room> take_room() {
  return spare_room ? std::move(spare_room) : std::make_unique<Room>();
}

}  // namespace

struct PatternScratch::Parts {
  // One place in the vector: the whole match.
  std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>> data{
      pcre2_match_data_create(1, nullptr)};
  std::unique_ptr<Room> room = take_room();
  Clock::time_point started = Clock::now();
  size_t bytes = 0;  // of all texts searched
  uint32_t attempts = 0;

  Parts() {
    if (!data) throw std::bad_alloc();
  }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;
  ~Parts() { spare_room = std::move(room); }
};

PatternScratch::PatternScratch() : parts_(std::make_unique<Parts>()) {}
PatternScratch::~PatternScratch() = default;

struct Pattern::Code {
  std::unique_ptr<pcre2_code, Free<pcre2_code_free>> code;
  std::string literal;                    // of Syntax::literal
  std::optional<std::bitset<256>> first;  // bytes that a match begins with, if that is known
};

namespace {

// Only a pattern that may match everywhere has this to say, and it is not run.
std::optional<std::bitset<256>> first_bytes(std::string_view written, uint32_t options,
                                            pcre2_compile_context* context) {
  int failed = 0;
  PCRE2_SIZE offset = 0;
  const std::unique_ptr<pcre2_code, Free<pcre2_code_free>> code(pcre2_compile(
      bytes_of(written), written.size(), options & ~PCRE2_ANCHORED, &failed, &offset, context));
  uint32_t empty = 0;
  const uint8_t* map = nullptr;
  if (!code || pcre2_pattern_info(code.get(), PCRE2_INFO_MATCHEMPTY, &empty) != 0 || empty != 0 ||
      pcre2_pattern_info(code.get(), PCRE2_INFO_FIRSTBITMAP, &map) != 0)
    return std::nullopt;
  std::bitset<256> out;
  if (map != nullptr) {
    for (size_t byte = 0; byte < 256; ++byte) out[byte] = (map[byte / 8] >> byte % 8 & 1) != 0;
    return out;
  }
  uint32_t kind = 0, unit = 0;
  // Where letters match in either case, the unit is only one of two.
  if (written.find("(?") != std::string_view::npos ||
      pcre2_pattern_info(code.get(), PCRE2_INFO_FIRSTCODETYPE, &kind) != 0 || kind != 1 ||
      pcre2_pattern_info(code.get(), PCRE2_INFO_FIRSTCODEUNIT, &unit) != 0)
    return std::nullopt;
  out[unit & 0xFFU] = true;
  return out;
}

}  // namespace

Pattern::Pattern(std::string_view pattern, Syntax syntax) : code_(std::make_unique<Code>()) {
  if (pattern.size() > kMaxPattern)
    throw PatternProblem{
        0, "has " + std::to_string(pattern.size()) + " bytes; at most 16384 are read"};
  std::string written = syntax == Syntax::literal ? std::string(pattern) : to_pcre2(pattern);
  std::unique_ptr<pcre2_compile_context, Free<pcre2_compile_context_free>> context(
      pcre2_compile_context_create(nullptr));
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_bsr(context.get(), PCRE2_BSR_UNICODE);
  pcre2_set_parens_nest_limit(context.get(), 100);
  uint32_t options = PCRE2_UTF | PCRE2_ANCHORED;
  options |= syntax == Syntax::literal
                 ? PCRE2_LITERAL
                 : PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_DUPNAMES;
  int failed = 0;
  PCRE2_SIZE offset = 0;
  code_->code.reset(
      pcre2_compile(bytes_of(written), written.size(), options, &failed, &offset, context.get()));
  if (!code_->code)
    throw PatternProblem{std::min<size_t>(offset, pattern.size()),
                         "cannot be compiled: " + message_of(failed)};
  if (syntax == Syntax::literal)
    code_->literal = pattern;
  else
    code_->first = first_bytes(written, options, context.get());
  // Without the compiler to machine code the interpreter does the same.
  pcre2_jit_compile(code_->code.get(), PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
}

Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;
Pattern::~Pattern() = default;

bool Pattern::matches_at(std::string_view text, size_t at, PatternScratch& scratch) const {
  return Matches(*this, text, scratch).at(at).has_value();
}

size_t Matches::step(size_t place) const {
  do ++place;
  while (place < text_.size() && (static_cast<uint8_t>(text_[place]) & 0xC0) == 0x80);
  return place;
}

// Five seconds and twenty a megabyte, where one is usual.
void Matches::check_time(size_t place) const {
  auto budget = std::chrono::seconds(5) +
                std::chrono::microseconds(20) *
                    static_cast<int64_t>(std::max(scratch_.parts_->bytes, text_.size()));
  if (Clock::now() - scratch_.parts_->started > budget)
    throw PatternProblem{place, "takes too long on this text"};
}

std::optional<Matches::Range> Matches::at(size_t place) {
  PatternScratch::Parts& scratch = *scratch_.parts_;
  if (++scratch.attempts % 256 == 0) check_time(place);
  for (size_t window = kWindow;; window *= 4) {
    size_t end = text_.size();
    if (end - place > window)
      for (end = place + window;
           end < text_.size() && (static_cast<uint8_t>(text_[end]) & 0xC0) == 0x80;)
        ++end;
    pcre2_set_match_limit(scratch.room->context.get(), static_cast<uint32_t>(std::min<size_t>(
                                                           20000 + 16 * (end - place), 1U << 31)));
    uint32_t options = PCRE2_NO_UTF_CHECK | (end < text_.size() ? PCRE2_PARTIAL_HARD : 0);
    auto attempt = [&](uint32_t more) {
      return pcre2_match(pattern_.code_->code.get(), bytes_of(text_), end, place, options | more,
                         scratch.data.get(), scratch.room->context.get());
    };
    int found = attempt(0);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = attempt(PCRE2_NO_JIT);
    if (found == PCRE2_ERROR_PARTIAL) {
      check_time(place);
      continue;
    }
    if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
    if (found == PCRE2_ERROR_MATCHLIMIT)
      throw PatternProblem{place, "takes too many steps on this text"};
    if (found < 0) throw PatternProblem{place, "fails on this text: " + message_of(found)};
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(scratch.data.get());
    if (range[0] > range[1] || range[0] < place)
      throw PatternProblem{place, "matches before where it started (\\K)"};
    return Range{range[0], range[1]};
  }
}

std::optional<Matches::Range> Matches::next() {
  if (const std::string& literal = pattern_.code_->literal; !literal.empty()) {
    const size_t found = text_.find(literal, from_);
    if (found == std::string_view::npos) return std::nullopt;
    from_ = found + literal.size();
    return Range{found, from_};
  }
  if (from_ == 0) scratch_.parts_->bytes += text_.size();
  const std::optional<std::bitset<256>>& first = pattern_.code_->first;
  for (size_t place = from_; place <= text_.size(); place = step(place)) {
    if (first) {
      while (place < text_.size() && !(*first)[static_cast<uint8_t>(text_[place])]) ++place;
      if (place == text_.size()) break;
    }
    std::optional<Range> found = at(place);
    if (!found) continue;
    if (found->begin == found->end && last_end_ == found->end) continue;
    from_ = found->end;
    last_end_ = found->end;
    return found;
  }
  from_ = text_.size() + 1;
  return std::nullopt;
}

}  // namespace meshwright::tokenizer
