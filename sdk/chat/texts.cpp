#include <algorithm>

#include "sdk/chat/renderer.h"
#include "sdk/chat/unicode.h"

namespace meshwright::chat {

Datum Renderer::copied(std::string_view bytes, int32_t message) {
  if (bytes.size() > Limits::kOutput) fail("a text is longer than 16 MiB");
  spend(bytes.size());
  char* out = take<char>(bytes.size());
  std::copy(bytes.begin(), bytes.end(), out);
  return Datum::string({out, bytes.size()}, message);
}

Datum Renderer::cut(const Datum& string, size_t begin, size_t end) {
  if (begin == 0 && end == string.size) return string;
  std::string_view bytes = string.view().substr(begin, end - begin);
  if (!string.mixed) return Datum::string(bytes, string.message);
  const Run* first = string.parts->runs;
  const Run* last = first + string.parts->count;
  first = std::partition_point(first, last, [&](const Run& run) { return run.end <= begin; });
  last = std::partition_point(first, last, [&](const Run& run) { return run.begin < end; });
  auto count = static_cast<size_t>(last - first);
  if (count == 0) return Datum::string(bytes);
  if (count == 1 && first->begin <= begin && first->end >= end && first->generation == 0)
    return Datum::string(bytes, first->message);
  spend(count);
  Run* runs = take<Run>(count);
  for (size_t i = 0; i < count; ++i) {
    runs[i] = first[i];
    runs[i].begin = static_cast<uint32_t>(std::max<size_t>(first[i].begin, begin) - begin);
    runs[i].end = static_cast<uint32_t>(std::min<size_t>(first[i].end, end) - begin);
  }
  Datum out = Datum::string(bytes);
  out.parts = make(Mixed{bytes.data(), runs, static_cast<uint32_t>(count)});
  out.mixed = true;
  return out;
}

Datum Renderer::need_text(const Datum& value) { return as_text(value); }

Datum Renderer::strip(const Datum& string, const Datum* chars, bool left, bool right) {
  std::string_view text = string.view();
  spend(1);
  if (chars == nullptr || chars->kind == Kind::none) {
    auto [begin, end] = unicode::stripped(text, left, right);
    return cut(string, begin, end);
  }
  if (!chars->is_string()) fail("strip arg must be None or str");
  std::string_view set = chars->view();
  auto in_set = [&](std::string_view one) {
    spend(set.size());
    for (size_t at = 0; at < set.size(); at += unicode::decode(set, at).size)
      if (set.substr(at, unicode::decode(set, at).size) == one) return true;
    return false;
  };
  size_t begin = 0, end = text.size();
  while (left && begin < end) {
    size_t size = unicode::decode(text, begin).size;
    if (!in_set(text.substr(begin, size))) break;
    begin += size;
  }
  while (right && end > begin) {
    size_t last = end - 1;
    while (last > begin && (static_cast<unsigned char>(text[last]) & 0xc0) == 0x80) --last;
    if (!in_set(text.substr(last, end - last))) break;
    end = last;
  }
  return cut(string, begin, end);
}

Datum Renderer::list_of(const std::vector<Datum>& items, Kind kind) {
  Datum* out = take<Datum>(items.size());
  std::copy(items.begin(), items.end(), out);
  return Datum::sequence(kind, out, items.size());
}

Datum Renderer::split(const Datum& string, const Arguments& given, bool from_right) {
  Bound bound = bind("split", given, {"sep", "maxsplit"});
  std::string_view text = string.view();
  spend(text.size());
  int64_t limit = bound[1] == nullptr ? -1 : whole_of(*bound[1], "maxsplit");
  size_t left = limit < 0 ? SIZE_MAX : static_cast<size_t>(limit);
  std::vector<std::pair<size_t, size_t>> parts;
  if (bound[0] == nullptr || bound[0]->kind == Kind::none) {
    // At blanks, of which none is left around a part but after the last split.
    if (!from_right) {
      size_t begin = unicode::stripped(text, true, false).first, end = text.size();
      while (begin < end) {
        if (left == 0) {
          parts.emplace_back(begin, end);
          break;
        }
        size_t stop = begin;
        while (stop < end) {
          auto [code, size] = unicode::decode(text, stop);
          if (unicode::is_blank(code)) break;
          stop += size;
        }
        parts.emplace_back(begin, stop);
        --left;
        begin = stop + unicode::stripped(text.substr(stop), true, false).first;
      }
    } else {
      if (limit >= 0) fail("rsplit at blanks with maxsplit is not supported");
      return split(string, {}, false);
    }
  } else {
    if (!bound[0]->is_string())
      fail("must be str or None, not " + std::string(type_name(bound[0]->kind)));
    std::string_view separator = bound[0]->view();
    if (separator.empty()) fail("empty separator");
    if (!from_right) {
      size_t begin = 0;
      for (; left > 0; --left) {
        size_t found = text.find(separator, begin);
        if (found == std::string_view::npos) break;
        parts.emplace_back(begin, found);
        begin = found + separator.size();
      }
      parts.emplace_back(begin, text.size());
    } else {
      size_t end = text.size();
      for (; left > 0; --left) {
        size_t found = end < separator.size() ? std::string_view::npos
                                              : text.rfind(separator, end - separator.size());
        if (found == std::string_view::npos) break;
        parts.emplace_back(found + separator.size(), end);
        end = found;
      }
      parts.emplace_back(0, end);
      std::reverse(parts.begin(), parts.end());
    }
  }
  Datum* items = take<Datum>(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) items[i] = cut(string, parts[i].first, parts[i].second);
  return Datum::sequence(Kind::list, items, parts.size());
}

Datum Renderer::split_lines(const Datum& string, bool keep_ends) {
  std::string_view text = string.view();
  spend(text.size());
  std::vector<Datum> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    auto [code, size] = unicode::decode(text, at);
    if (!unicode::is_line_end(code)) {
      at += size;
      continue;
    }
    size_t next = at + size + (code == '\r' && text.substr(at + size).starts_with('\n') ? 1 : 0);
    lines.push_back(cut(string, begin, keep_ends ? next : at));
    begin = at = next;
  }
  if (begin < text.size()) lines.push_back(cut(string, begin, text.size()));
  return list_of(lines);
}

Datum Renderer::replace(const Datum& string, const Datum& old, const Datum& by, int64_t count) {
  std::string_view text = string.view(), wanted = old.view();
  spend(text.size());
  size_t left = count < 0 ? SIZE_MAX : static_cast<size_t>(count);
  if (!wanted.empty() && text.find(wanted) == std::string_view::npos) return string;
  Writer out;
  auto room = [&] {
    if (out.text.size() > Limits::kOutput) fail("a text is longer than 16 MiB");
  };
  size_t at = 0;
  if (wanted.empty()) {
    // Between all characters.
    while (left > 0) {
      out.write(by, 0);
      room();
      --left;
      if (at >= text.size()) break;
      size_t size = unicode::decode(text, at).size;
      out.write(string, at, at + size, 0);
      at += size;
    }
  } else {
    for (; left > 0; --left) {
      size_t found = text.find(wanted, at);
      if (found == std::string_view::npos) break;
      out.write(string, at, found, 0);
      out.write(by, 0);
      room();
      at = found + wanted.size();
    }
  }
  if (at < text.size()) out.write(string, at, text.size(), 0);
  room();
  return text_of(out);
}

// `strict`: str.join, which takes strings only.
Datum Renderer::joined(const Datum& separator, Items items, bool strict) {
  Writer out;
  for (uint32_t i = 0; i < items.size; ++i) {
    const Datum& item = items.at[i];
    if (strict && !item.is_string())
      fail("sequence item " + std::to_string(i) + ": expected str instance, " +
           std::string(type_name(item.kind)) + " found");
    if (i > 0) out.write(separator, 0);
    print(item, out, 0);
    if (out.text.size() > Limits::kOutput) fail("a text is longer than 16 MiB");
  }
  spend(out.text.size() + items.size);
  return text_of(out);
}

Datum Renderer::cased(const Datum& string, Case to) {
  std::string_view text = string.view();
  spend(text.size());
  Writer out;
  Origins origins(string);
  bool within = false;  // after a letter of the same word
  size_t word = 0;      // where the part begins that the filter `title` makes small
  std::string piece;
  auto is_cased = [](char32_t code) {
    return unicode::is_upper(code) || unicode::is_lower(code) || unicode::is_title(code);
  };
  // A sigma that ends a word has its own small letter.
  auto is_final = [&](size_t at, size_t next) {
    auto letter = [&](size_t i) { return is_cased(unicode::decode(text, i).code); };
    size_t before = at;
    while (before > 0 && (static_cast<unsigned char>(text[--before]) & 0xc0) == 0x80) {
    }
    return at > word && letter(before) && (next >= text.size() || !letter(next));
  };
  for (size_t at = 0; at < text.size();) {
    auto [code, size] = unicode::decode(text, at);
    piece.clear();
    bool big = to == Case::upper;
    bool first = to == Case::capitalize ? at == 0 : !within;
    if (to == Case::title || to == Case::capitalize) {
      if (first) unicode::title(code, piece);
    } else if (to == Case::title_filter) {
      big = !within;
      if (big) word = at + size;
    }
    if (big) unicode::upper(code, piece);
    if (piece.empty()) {
      if (code == 0x3a3)
        piece = is_final(at, at + size) ? "\xcf\x82" : "\xcf\x83";
      else
        unicode::lower(code, piece);
    }
    if (to == Case::title)
      within = is_cased(code);
    else if (to == Case::title_filter)
      within = !(unicode::is_blank(code) || code == '-' || code == '(' || code == '{' ||
                 code == '[' || code == '<');
    Run from = origins.at(at);
    out.write(piece, from.message, from.generation);
    at += size;
  }
  return text_of(out);
}

Datum Renderer::reversed(const Datum& string) {
  return sliced(string, Datum::none(), Datum::none(), Datum::whole(-1));
}

Datum Renderer::indent(const Datum& string, const Arguments& given) {
  Bound bound = bind("indent", given, {"width", "first", "blank"});
  Datum by = copied("    ");
  if (bound[0] != nullptr && bound[0]->is_string())
    by = *bound[0];
  else if (bound[0] != nullptr)
    by = repeated(Datum::string(" "), whole_of(*bound[0], "the width of indent"));
  bool blank = flag(bound[2], false);
  // As Jinja: a newline more, so that the last line counts.
  Datum lines = split_lines(add(string, Datum::string("\n")), false);
  Writer out;
  if (flag(bound[1], false)) out.write(by, 0);
  for (uint32_t i = 0; i < lines.size; ++i) {
    if (i > 0) {
      out.write("\n", kNoMessage, 0);
      if (blank || lines.items[i].size > 0) out.write(by, 0);
    }
    out.write(lines.items[i], 0);
    if (out.text.size() > Limits::kOutput) fail("a text is longer than 16 MiB");
  }
  return text_of(out);
}

Datum Renderer::escape(const Datum& string) {
  std::string_view text = string.view();
  spend(text.size());
  Writer out;
  Origins origins(string);
  for (size_t at = 0; at < text.size(); ++at) {
    static constexpr std::string_view kFrom = "&<>\"'";
    static constexpr std::array<std::string_view, 5> kTo = {"&amp;", "&lt;", "&gt;", "&#34;",
                                                            "&#39;"};
    size_t found = kFrom.find(text[at]);
    if (found == std::string_view::npos) {
      out.write(string, at, at + 1, 0);
      continue;
    }
    Run from = origins.at(at);
    out.write(kTo[found], from.message, from.generation);
  }
  return text_of(out);
}

}  // namespace meshwright::chat
