#include <algorithm>

#include "sdk/text/chat/renderer.h"
#include "sdk/text/chat/unicode.h"

namespace meshwright::chat {

Datum Renderer::copied(std::string_view bytes, int32_t message) {
  check_size(bytes.size());
  spend(bytes.size());
  char* out = take<char>(bytes.size());
  std::copy(bytes.begin(), bytes.end(), out);
  return Datum::string({out, bytes.size()}, message);
}

Datum Renderer::cut(const Datum& string, size_t begin, size_t end) {
  if (begin == 0 && end == string.size) return string;
  if (string.marked) return marked(cut(marked(string, false), begin, end));
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

Datum Renderer::need_text(const Datum& value) { return value.is_string() ? value : as_text(value); }

Datum Renderer::strip(const Datum& string, const Datum* chars, bool left, bool right) {
  std::string_view text = string.view();
  spend(1);
  if (!is_given(chars)) {
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
  if (kind == Kind::iterator) return stream_of(out, items.size());
  return Datum::sequence(kind, out, items.size());
}

Datum Renderer::stream_of(const Datum* items, size_t size) {
  Datum out = Datum::of(Kind::iterator);
  out.stream = make(Stream{items, static_cast<uint32_t>(size), 0});
  return out;
}

Datum Renderer::split(const Datum& string, const Arguments& given, bool from_right) {
  Bound bound = bind("split", given, {"sep", "maxsplit"});
  std::string_view text = string.view();
  spend(text.size());
  int64_t limit = bound[1] == nullptr ? -1 : whole_of(*bound[1], "maxsplit");
  size_t left = limit < 0 ? SIZE_MAX : static_cast<size_t>(limit);
  std::vector<std::pair<size_t, size_t>> parts;
  if (!is_given(bound[0])) {
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
      size_t end = unicode::stripped(text, false, true).second;
      const size_t first = unicode::stripped(text, true, false).first;
      while (end > first && left > 0) {
        size_t begin = end;
        while (begin > first) {
          size_t last = begin - 1;
          while ((static_cast<unsigned char>(text[last]) & 0xc0) == 0x80) --last;
          if (unicode::is_blank(unicode::decode(text, last).code)) break;
          begin = last;
        }
        parts.emplace_back(begin, end);
        --left;
        end = unicode::stripped(text.substr(0, begin), false, true).second;
      }
      if (end > first) parts.emplace_back(0, end);
      std::reverse(parts.begin(), parts.end());
    }
  } else {
    if (!bound[0]->is_string()) fail("must be str or None, not " + type_name(bound[0]->kind));
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
  const Datum with = string.marked ? escape(by) : by;
  Writer out;
  auto room = [&] { check_size(out.text.size()); };
  size_t at = 0;
  if (wanted.empty()) {
    // Between all characters.
    while (left > 0) {
      out.write(with, 0);
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
      out.write(with, 0);
      room();
      at = found + wanted.size();
    }
  }
  if (at < text.size()) out.write(string, at, text.size(), 0);
  room();
  return marked(text_of(out), string.marked);
}

// `strict`: str.join, which takes strings only, and that of a Markup, which escapes what it takes.
Datum Renderer::joined(const Datum& separator, Items items, bool strict) {
  Writer out;
  for (uint32_t i = 0; i < items.size; ++i) {
    const Datum& item = items.at[i];
    if (strict && !item.is_string() && !separator.marked)
      fail("sequence item " + std::to_string(i) + ": expected str instance, " +
           type_name(item.kind) + " found");
    if (i > 0) out.write(separator, 0);
    print(strict && separator.marked ? escape(item) : item, out, 0);
    check_size(out.text.size());
  }
  spend(out.text.size() + items.size);
  return marked(text_of(out), strict && separator.marked);
}

Datum Renderer::cased(const Datum& string, Case to) {
  std::string_view text = string.view();
  spend(text.size());
  Writer out;
  Origins origins(string);
  bool within = false;  // after a letter of the same word
  size_t word = 0;      // where the part begins that the filter `title` makes small
  std::string piece;
  using unicode::is_cased;
  // A sigma that ends a word has its own small letter. What no word ends at does not count.
  auto is_final = [&](size_t at, size_t next) {
    char32_t before = 0, behind = 0;
    while (at > word) {
      while ((static_cast<unsigned char>(text[--at]) & 0xc0) == 0x80) {
      }
      before = unicode::decode(text, at).code;
      if (!unicode::is_case_ignorable(before)) break;
      before = 0;
    }
    for (; next < text.size(); next += unicode::decode(text, next).size)
      if (behind = unicode::decode(text, next).code; !unicode::is_case_ignorable(behind)) break;
    return is_cased(before) && (next >= text.size() || !is_cased(behind));
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
    } else if (to == Case::swap) {
      big = unicode::is_lower(code);
      if (!big && !unicode::is_upper(code)) piece = text.substr(at, size);
    } else if (to == Case::fold) {
      unicode::fold(code, piece);
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
  return marked(text_of(out), string.marked);
}

Datum Renderer::indent(const Datum& string, const Arguments& given) {
  Bound bound = bind("indent", given, {"width", "first", "blank"});
  Datum by = copied("    ");
  if (bound[0] != nullptr && bound[0]->is_string())
    by = *bound[0];
  else if (bound[0] != nullptr)
    by = repeated(Datum::string(" "), whole_of(*bound[0], "the width of indent"));
  // A Markup takes what it is indented with as another.
  by = marked(by, false);
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
    check_size(out.text.size());
  }
  return marked(text_of(out), string.marked);
}

Datum Renderer::escape(const Datum& value) {
  if (value.is_markup()) return value;
  const Datum string = as_text(value);
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
  return marked(text_of(out));
}

// center, ljust, rjust.
Datum Renderer::padded(const Datum& string, Method method, const Arguments& given) {
  Bound bound = bind("ljust", given, {"width", "fillchar"}, 1);
  Datum fill = bound[1] == nullptr ? Datum::string(" ") : *bound[1];
  auto is_one = [&] { return fill.is_string() && unicode::length(fill.view()) == 1; };
  if (is_one() && string.marked) fill = escape(fill);
  if (!is_one()) fail("The fill character must be exactly one character long");
  const int64_t width = whole_of(*bound[0], "the width"),
                lacking = width - static_cast<int64_t>(unicode::length(string.view()));
  if (lacking <= 0) return string;
  const int64_t before = method == Method::ljust   ? 0
                         : method == Method::rjust ? lacking
                                                   : lacking / 2 + (lacking & width & 1);
  fill = marked(fill, string.marked);
  return add(add(repeated(fill, before), string), repeated(fill, lacking - before));
}

Datum Renderer::partition(const Datum& string, const Arguments& given, bool from_right) {
  Bound bound = bind("partition", given, {"sep"}, 1);
  if (!bound[0]->is_string()) fail("must be str, not " + type_name(bound[0]->kind));
  const std::string_view text = string.view(), separator = bound[0]->view();
  if (separator.empty()) fail("empty separator");
  spend(text.size());
  const size_t at = from_right ? text.rfind(separator) : text.find(separator);
  Datum* out = take<Datum>(3);
  std::fill_n(out, 3, marked(Datum::string(""), string.marked));
  if (at == std::string_view::npos) {
    out[from_right ? 2 : 0] = string;
  } else {
    out[0] = cut(string, 0, at);
    out[1] = cut(string, at, at + separator.size());
    out[2] = cut(string, at + separator.size(), text.size());
  }
  return Datum::sequence(Kind::tuple, out, 3);
}

Datum Renderer::expand_tabs(const Datum& string, const Arguments& given) {
  Bound bound = bind("expandtabs", given, {"tabsize"});
  const int64_t every = bound[0] == nullptr ? 8 : whole_of(*bound[0], "the size of tabs");
  const std::string_view text = string.view();
  spend(text.size());
  Writer out;
  Origins origins(string);
  int64_t column = 0;
  for (size_t at = 0; at < text.size();) {
    const uint32_t size = unicode::decode(text, at).size;
    if (text[at] == '\t') {
      const int64_t blanks = every <= 0 ? 0 : every - column % every;
      check_size(out.text.size() + static_cast<size_t>(blanks));
      const Run from = origins.at(at);
      out.write(std::string(static_cast<size_t>(blanks), ' '), from.message, from.generation);
      column += blanks;
    } else {
      out.write(string, at, at + size, 0);
      column = text[at] == '\n' || text[at] == '\r' ? 0 : column + 1;
    }
    at += size;
  }
  return marked(text_of(out), string.marked);
}

}  // namespace meshwright::chat
