#include "sdk/text/tokenizer/unicode_forms.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "sdk/text/tokenizer/character_classes.h"
#include "sdk/text/tokenizer/normalize.h"

namespace meshwright::tokenizer {

namespace {

bool composes(Form form) { return form == Form::nfc || form == Form::nfkc; }
bool is_compatible(Form form) { return form == Form::nfkc || form == Form::nfkd; }

// Below this no character is changed by the form where nothing combines with it.
int32_t first_changed(Form form) {
  if (is_compatible(form)) return 0xA0;
  return composes(form) ? 0x300 : 0xC0;
}

int combining_class(int32_t code) { return utf8proc_get_property(code)->combining_class; }

using Codes = std::vector<utf8proc_int32_t>;

void put_decomposed(int32_t code, Form form, Codes& out) {
  if (code < 0xA0 || (is_compatible(form) && is_compatible_later(code))) {
    out.push_back(code);
    return;
  }
  utf8proc_int32_t parts[32];  // decompositions for compatibility have at most 18 characters
  const auto count = utf8proc_decompose_char(
      code, parts, 32,
      static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE |
                                     (is_compatible(form) ? UTF8PROC_COMPAT : 0)),
      nullptr);
  if (count < 1 || count > 32)
    out.push_back(code);
  else
    out.insert(out.end(), parts, parts + count);
}

// Decomposed characters, put in order and composed where the form does so.
void put_ordered(Codes& codes, Form form, std::string& out) {
  // utf8proc's own ordering takes quadratic time on a long run of marks.
  for (size_t i = 0; i < codes.size();) {
    if (combining_class(codes[i]) == 0) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < codes.size() && combining_class(codes[end]) != 0) ++end;
    std::stable_sort(codes.begin() + static_cast<std::ptrdiff_t>(i),
                     codes.begin() + static_cast<std::ptrdiff_t>(end),
                     [](int32_t a, int32_t b) { return combining_class(a) < combining_class(b); });
    i = end;
  }
  auto count = static_cast<utf8proc_ssize_t>(codes.size());
  if (composes(form))
    count = utf8proc_normalize_utf32(
        codes.data(), count, static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  for (utf8proc_ssize_t i = 0; i < count; ++i) append_utf8(out, codes[static_cast<size_t>(i)]);
  codes.clear();
}

// `text`: characters that the form may change together.
void put_group(std::string_view text, Form form, Codes& codes, std::string& out) {
  codes.clear();
  for (size_t at = 0; at < text.size();) {
    const Character next = character_at(text, at);
    at += next.bytes;
    if (composed_later(next.code)) {
      put_ordered(codes, form, out);
      append_utf8(out, next.code);
    } else {
      put_decomposed(next.code, form, codes);
    }
  }
  put_ordered(codes, form, out);
}

}  // namespace

// Marks join what stands before them, and so do the vowels and final consonants of Hangul and one
// letter of Kirat Rai, the only characters that do and are no marks; with the forms for
// compatibility also what begins with one of these there.
bool starts_anew(int32_t code, Form form) {
  if (code < 0x300) return true;
  if ((code >= 0x1160 && code <= 0x11FF) || (code >= 0xD7B0 && code <= 0xD7FF) || code == 0x16D67)
    return false;
  switch (utf8proc_category(code)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return false;
    default:
      break;
  }
  // Letters of Hangul, and the voiced marks of narrow Katakana.
  if (is_compatible(form) &&
      ((code >= 0x3131 && code <= 0x318E) || (code >= 0xFF9E && code <= 0xFFDC))) {
    Codes parts;
    put_decomposed(code, form, parts);
    return parts[0] == code || starts_anew(parts[0], Form::nfc);
  }
  return true;
}

void to_form(Aligned& text, Form form) {
  const std::string_view in = text.text;
  const int32_t first = first_changed(form);
  if (std::all_of(in.begin(), in.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; }))
    return;
  Aligned out = Aligned::after(text);
  Codes codes;
  std::string group;
  size_t kept = 0;  // what stands before it is done
  for (size_t begin = 0, end = 0; begin < in.size(); begin = end) {
    // Of a stretch of ASCII a mark can join the last one alone.
    for (end = begin; end < in.size() && static_cast<uint8_t>(in[end]) < 0x80;) ++end;
    if (end > begin + 1) {
      --end;
      continue;
    }
    const Character one = character_at(in, begin);
    end = begin + one.bytes;
    while (end < in.size() && static_cast<uint8_t>(in[end]) >= 0xCC) {
      const Character next = character_at(in, end);
      if (starts_anew(next.code, form)) break;
      end += next.bytes;
    }
    if (end == begin + one.bytes && one.code < first) continue;
    group.clear();
    put_group(in.substr(begin, end - begin), form, codes, group);
    if (group == in.substr(begin, end - begin)) continue;
    out.keep(text, kept, begin);
    out.put(group, text.source(begin, end));
    kept = end;
  }
  if (kept == 0) return;
  out.keep(text, kept, in.size());
  text = std::move(out);
}

std::string in_form(std::string_view text, Form form) {
  Aligned out(text, 0, false);
  to_form(out, form);
  return std::move(out.text);
}

}  // namespace meshwright::tokenizer
