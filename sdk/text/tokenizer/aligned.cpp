#include "sdk/text/tokenizer/aligned.h"

#include "sdk/text/tokenizer/normalize.h"

namespace meshwright::tokenizer {

Aligned::Aligned(std::string_view source, size_t at, bool is_tracked)
    : text(source), tracked(is_tracked) {
  if (!tracked) return;
  from.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) from.push_back({at + i, at + i + 1});
}

Aligned Aligned::after(const Aligned& before) {
  Aligned out;
  out.tracked = before.tracked;
  out.text.reserve(before.text.size() + before.text.size() / 8 + 8);
  if (out.tracked) out.from.reserve(out.text.capacity());
  return out;
}

void Aligned::put(int32_t code, ByteRange source) {
  const size_t before = text.size();
  append_utf8(text, code);
  if (tracked) from.insert(from.end(), text.size() - before, source);
}

}  // namespace meshwright::tokenizer
