#include "sdk/text/chat/value.h"

#include <algorithm>
#include <boost/json/basic_parser_impl.hpp>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <unordered_map>

#include "meshwright/error.h"
#include "sdk/base/plain_text.h"
#include "sdk/text/chat/renderer.h"
#include "sdk/text/chat/unicode.h"

namespace meshwright::chat {

void* Arena::refill(size_t bytes) {
  size_t size = std::max(bytes, std::min(size_t{1} << 20, (size_t{64} << 10) << blocks_.size()));
  if (size > budget_.limit - std::min(budget_.limit, budget_.taken)) return nullptr;
  auto block = std::make_unique_for_overwrite<char[]>(size);
  char* out = block.get();
  blocks_.push_back({std::move(block), size});
  budget_.taken += size;
  // The larger rest goes on being used.
  if (size - bytes > left_) {
    at_ = out + bytes;
    left_ = size - bytes;
  }
  return out;
}

void Arena::release(const Mark& mark) {
  for (; blocks_.size() > mark.blocks; blocks_.pop_back()) budget_.taken -= blocks_.back().size;
  at_ = mark.at;
  left_ = mark.left;
}

bool Arena::since(const Mark& mark, const void* of) const {
  auto within = [&](const char* begin, size_t size) {
    return std::less_equal<>()(static_cast<const void*>(begin), of) &&
           std::less<>()(of, static_cast<const void*>(begin + size));
  };
  return within(mark.at, mark.left) ||
         std::any_of(blocks_.begin() + static_cast<std::ptrdiff_t>(mark.blocks), blocks_.end(),
                     [&](const Block& block) { return within(block.bytes.get(), block.size); });
}

void Writer::mark(uint32_t begin, uint32_t end, int32_t message, uint32_t generation) {
  if (begin == end) return;
  if (!runs.empty()) {
    Run& last = runs.back();
    if (last.end == begin && last.message == message && last.generation == generation) {
      last.end = end;
      return;
    }
  }
  runs.push_back({begin, end, message, generation});
}

void Writer::write(const Datum& string, size_t begin, size_t end, uint32_t generation) {
  std::string_view bytes = string.view().substr(begin, end - begin);
  if (!string.mixed) return write(bytes, string.message, generation);
  auto base = static_cast<uint32_t>(text.size());
  text.append(bytes);
  auto first = static_cast<uint32_t>(begin), last = static_cast<uint32_t>(end);
  uint32_t at = first;
  const Run* runs_end = string.parts->runs + string.parts->count;
  const Run* run = std::partition_point(string.parts->runs, runs_end,
                                        [&](const Run& r) { return r.end <= first; });
  for (; run != runs_end && run->begin < last; ++run) {
    uint32_t from = std::max(run->begin, first), to = std::min(run->end, last);
    if (generation != 0) mark(base + at - first, base + from - first, kNoMessage, generation);
    mark(base + from - first, base + to - first, run->message,
         run->generation != 0 ? run->generation : generation);
    at = to;
  }
  if (generation != 0) mark(base + at - first, base + last - first, kNoMessage, generation);
}

Run Origins::at(size_t offset) {
  if (!string_->mixed) return {0, 0, string_->message, 0};
  const Mixed& parts = *string_->parts;
  while (next_ < parts.count && parts.runs[next_].end <= offset) ++next_;
  if (next_ < parts.count && parts.runs[next_].begin <= offset) return parts.runs[next_];
  return {0, 0, kNoMessage, 0};
}

Value Value::dict(Dict members) {
  // A row may have many keys: comparing each with each takes too long for these.
  constexpr size_t kFew = 16;
  Dict kept;
  kept.reserve(members.size());
  std::unordered_map<std::string, size_t> places;
  for (Member& member : members) {
    size_t place = kept.size();
    if (members.size() > kFew) {
      place = places.emplace(member.first, place).first->second;
    } else {
      auto same = [&](const Member& one) { return one.first == member.first; };
      place = static_cast<size_t>(std::find_if(kept.begin(), kept.end(), same) - kept.begin());
    }
    if (place < kept.size())
      kept[place].second = std::move(member.second);
    else
      kept.push_back(std::move(member));
  }
  return of(std::move(kept));
}

std::string Value::kind_name() const {
  constexpr const char* kNames[] = {"null",     "a boolean", "a number", "a number",
                                    "a number", "a string",  "a list",   "an object"};
  return kNames[held_.index()];
}

const Value* Value::get(std::string_view key) const {
  const Dict* members = std::get_if<Dict>(&held_);
  if (members == nullptr) return nullptr;
  for (const Member& member : *members)
    if (member.first == key) return &member.second;
  return nullptr;
}

void Value::set(std::string key, Value value) {
  Dict& members = std::get<Dict>(held_);
  for (Member& member : members)
    if (member.first == key) {
      member.second = std::move(value);
      return;
    }
  members.emplace_back(std::move(key), std::move(value));
}

bool is_role(std::string_view role) {
  return !role.empty() && std::all_of(role.begin(), role.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           c == '-';
  });
}

namespace {

namespace json = boost::json;
using boost::system::error_code;

constexpr size_t kDeepest = 200;

bool is_real_number(std::string_view text) {
  return text.find_first_of(".eE") != std::string_view::npos;
}

Value number_of(const std::string& text) {
  if (is_real_number(text)) {
    double value = 0;
    auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
    // Too large or too small: infinity or zero, as in Python.
    if (failed == std::errc::result_out_of_range) value = text::read_real(text.c_str());
    return Value::real(value);
  }
  int64_t value = 0;
  auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  return failed == std::errc() ? Value::integer(value) : Value::big_integer(text);
}

// Builds a Value; numbers are read from their text, which Boost's value does not keep.
struct Builder {
  static constexpr size_t max_object_size = std::numeric_limits<size_t>::max(),
                          max_array_size = std::numeric_limits<size_t>::max(),
                          max_key_size = std::numeric_limits<size_t>::max(),
                          max_string_size = std::numeric_limits<size_t>::max();

  Value done;

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }
  bool on_object_begin(error_code&) {
    open_.emplace_back();
    return true;
  }
  bool on_object_end(size_t, error_code&) {
    Open last = std::move(open_.back());
    open_.pop_back();
    return put(Value::dict(std::move(last.members)));
  }
  bool on_array_begin(error_code&) {
    open_.emplace_back().is_list = true;
    return true;
  }
  bool on_array_end(size_t, error_code&) {
    Open last = std::move(open_.back());
    open_.pop_back();
    return put(Value::list(std::move(last.items)));
  }
  bool on_key_part(json::string_view part, size_t, error_code&) { return more(part); }
  bool on_key(json::string_view part, size_t, error_code&) {
    more(part);
    open_.back().key = std::move(text_);
    text_.clear();
    return true;
  }
  bool on_string_part(json::string_view part, size_t, error_code&) { return more(part); }
  bool on_string(json::string_view part, size_t, error_code&) {
    more(part);
    Value value = Value::string(std::move(text_));
    text_.clear();
    return put(std::move(value));
  }
  bool on_number_part(json::string_view part, error_code&) { return more(part); }
  bool on_int64(int64_t, json::string_view part, error_code&) { return number(part); }
  bool on_uint64(uint64_t, json::string_view part, error_code&) { return number(part); }
  bool on_double(double, json::string_view part, error_code&) { return number(part); }
  bool on_bool(bool value, error_code&) { return put(Value::boolean(value)); }
  bool on_null(error_code&) { return put(Value()); }
  bool on_comment_part(json::string_view, error_code&) { return true; }
  bool on_comment(json::string_view, error_code&) { return true; }

 private:
  struct Open {
    bool is_list = false;
    std::string key;
    Value::Dict members;
    Value::List items;
  };
  bool more(json::string_view part) {
    text_.append(part.data(), part.size());
    return true;
  }
  bool number(json::string_view part) {
    more(part);
    Value value = number_of(text_);
    text_.clear();
    return put(std::move(value));
  }
  bool put(Value value) {
    if (open_.empty())
      done = std::move(value);
    else if (open_.back().is_list)
      open_.back().items.push_back(std::move(value));
    else
      open_.back().members.emplace_back(std::move(open_.back().key), std::move(value));
    return true;
  }
  std::vector<Open> open_;
  std::string text_;
};

// Where the first half of a surrogate pair stands that has no other; text.size(): nowhere.
size_t lone_surrogate(std::string_view text) {
  auto escaped = [&](size_t at) {
    unsigned code = 0;
    if (at + 6 > text.size() || text[at] != '\\' || text[at + 1] != 'u') return code;
    const char* const end = text.data() + at + 6;
    return std::from_chars(text.data() + at + 2, end, code, 16).ptr == end ? code : 0;
  };
  auto is_first = [](unsigned code) { return code >= 0xD800 && code < 0xDC00; };
  auto is_second = [](unsigned code) { return code >= 0xDC00 && code < 0xE000; };
  for (size_t at = text.find('\\'); at < text.size(); at = text.find('\\', at)) {
    const unsigned code = escaped(at);
    if (is_second(code) || (is_first(code) && !is_second(escaped(at + 6)))) return at;
    at += is_first(code) ? 12 : 2;
  }
  return text.size();
}

// What people and other languages write that is not JSON, where the parser stopped; else its words.
std::string wrong_at(std::string_view text, size_t at, const std::string& otherwise) {
  at = std::min(at, text.size());
  const std::string_view rest = text.substr(at);
  for (std::string_view word : {"NaN", "Infinity", "-Infinity"})
    if (rest.starts_with(word))
      return std::string(word) + " is no number of JSON; write null, or a string, in its place";
  for (std::string_view word : {"True", "False", "None"})
    if (rest.starts_with(word))
      return std::string(word) + " is Python's; JSON has true, false and null";
  if (rest.starts_with('\'')) return "strings and keys stand in double quotes, and not in '";
  if (rest.starts_with('}') || rest.starts_with(']'))
    if (const size_t before = text.substr(0, at).find_last_not_of(" \t\r\n");
        before != std::string_view::npos && text[before] == ',')
      return std::string("a comma stands before ") + rest[0] + ", with nothing behind it";
  // The parser stops at most behind what should have been the other half.
  if (const size_t lone = lone_surrogate(text); lone < text.size() && lone <= at && at <= lone + 12)
    return "half of a surrogate pair: " + std::string(text.substr(lone, 6));
  return otherwise;
}

}  // namespace

Value parse_json(std::string_view text) {
  json::parse_options options;
  options.max_depth = kDeepest;
  json::basic_parser<Builder> parser(options);
  error_code failed;
  size_t read = parser.write_some(false, text.data(), text.size(), failed);
  while (!failed && read < text.size() &&
         (text[read] == ' ' || text[read] == '\n' || text[read] == '\r' || text[read] == '\t'))
    ++read;
  if (!failed && read < text.size()) failed = json::error::extra_data;
  if (failed) {
    std::string_view before = text.substr(0, std::min(read, text.size()));
    size_t line = 1 + static_cast<size_t>(std::count(before.begin(), before.end(), '\n'));
    size_t column = before.size() - (before.rfind('\n') + 1) + 1;
    throw Error(ErrorCode::bad_dataset,
                std::to_string(line) + ":" + std::to_string(column) +
                    ": not valid JSON: " + wrong_at(text, read, failed.message()));
  }
  return std::move(parser.handler().done);
}

std::string python_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  auto [end, failed] =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  std::string text(buffer, end);
  size_t e = text.find('e');
  int exponent = std::atoi(text.c_str() + e + 1);
  if (exponent < -4 || exponent >= 16) return text;  // "1e-05": two digits at least, as C has it
  bool negative = text[0] == '-';
  std::string digits;
  for (char c : text.substr(0, e))
    if (c >= '0' && c <= '9') digits += c;
  std::string out = negative ? "-" : "";
  if (exponent < 0)
    return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() < whole) digits.append(whole - digits.size(), '0');
  out += digits.substr(0, whole) + ".";
  return out + (digits.size() > whole ? digits.substr(whole) : "0");
}

struct Renderer::JsonStyle {
  bool indented = false, sort_keys = false, ascii = false;
  std::string indent, between = ", ", after_key = ": ";
};

// json.dumps(value, ensure_ascii=False, ...).
Datum Renderer::tojson(const Datum& value, const Arguments& given) {
  Bound bound = bind("tojson", given, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = flag(bound[0], false);
  if (is_given(bound[1])) {
    style.indented = true;
    if (bound[1]->is_string()) {
      style.indent = bound[1]->view();
    } else {
      constexpr int64_t kWidest = 1000;
      int64_t width = whole_of(*bound[1], "the indent of tojson");
      style.indent.assign(static_cast<size_t>(std::clamp<int64_t>(width, 0, kWidest)), ' ');
    }
    style.between = ",";
  }
  if (is_given(bound[2])) {
    Items parts = need_items(*bound[2]);
    if (parts.size != 2 || !parts.at[0].is_string() || !parts.at[1].is_string())
      fail("the separators of tojson are two strings");
    style.between = parts.at[0].view();
    style.after_key = parts.at[1].view();
  }
  style.sort_keys = flag(bound[3], false);
  Writer out;
  json(value, style, out, 0);
  Datum text = text_of(out);
  if (!text.mixed) return text;
  // The whole of it belongs to the message that its values came from, if it is one.
  const Mixed& parts = *text.parts;
  bool one = std::all_of(parts.runs, parts.runs + parts.count, [&](const Run& run) {
    return run.message == parts.runs[0].message && run.generation == 0;
  });
  return one ? Datum::string(text.view(), parts.runs[0].message) : text;
}

void Renderer::json_string(const Datum& value, bool ascii, Writer& out) {
  std::string_view text = value.view();
  spend(text.size());
  Origins origins(value);
  static constexpr std::string_view kShort = "\"\\\n\r\t\b\f", kLetters = "\"\\nrtbf";
  std::string piece = "\"";
  int32_t around = value.mixed ? kNoMessage : value.message;
  out.write(piece, around, 0);
  for (size_t at = 0; at < text.size();) {
    // What needs no escape goes in one piece.
    size_t end = at;
    while (end < text.size() && text[end] != '"' && text[end] != '\\' &&
           static_cast<unsigned char>(text[end]) >= 0x20 &&
           (!ascii || static_cast<unsigned char>(text[end]) < 0x7f))
      ++end;
    if (end > at) {
      out.write(value, at, end, 0);
      at = end;
      continue;
    }
    auto [code, size] = unicode::decode(text, at);
    Run from = origins.at(at);
    const size_t known =
        code < 0x80 ? kShort.find(static_cast<char>(code)) : std::string_view::npos;
    const auto unit = static_cast<unsigned>(code);
    if (known != std::string_view::npos)
      piece = {'\\', kLetters[known]};
    else if (code < 0x10000)
      piece = text::format("\\u%04x", unit);
    else
      piece = text::format("\\u%04x\\u%04x", 0xd800 + ((unit - 0x10000) >> 10),
                           0xdc00 + (unit & 0x3ff));
    out.write(piece, from.message, from.generation);
    at += size;
  }
  out.write("\"", around, 0);
}

void Renderer::json(const Datum& value, const JsonStyle& style, Writer& out, int depth) {
  if (depth > kDeepestValue) fail("a value is nested too deeply");
  check_size(out.text.size());
  spend(1);
  auto put = [&](std::string_view text) { out.write(text, value.message, 0); };
  auto number = [&](const Datum& one) {
    if (one.kind == Kind::boolean) return std::string(one.truth ? "true" : "false");
    if (one.kind != Kind::real || std::isfinite(one.real)) return number_text(one);
    return std::string(std::isnan(one.real) ? "NaN" : one.real < 0 ? "-Infinity" : "Infinity");
  };
  auto line = [&](int level) {
    if (!style.indented) return;
    std::string text = "\n";
    for (int i = 0; i < level; ++i) text += style.indent;
    put(text);
  };
  switch (value.kind) {
    case Kind::none:
      return put("null");
    case Kind::boolean:
    case Kind::integer:
    case Kind::real:
    case Kind::big:
      return put(number(value));
    case Kind::string:
      return json_string(value, style.ascii, out);
    case Kind::list:
    case Kind::tuple:
      if (value.size == 0) return put("[]");
      put("[");
      for (uint32_t i = 0; i < value.size; ++i) {
        if (i > 0) put(style.between);
        line(depth + 1);
        json(value.items[i], style, out, depth + 1);
      }
      line(depth);
      return put("]");
    case Kind::dict:
      break;
    default:
      fail("Object of type " +
           (value.kind == Kind::view ? view_name(value) : type_name(value.kind)) +
           " is not JSON serializable");
  }
  if (value.size == 0) return put("{}");
  std::vector<const Datum*> keys;
  for (size_t i = 0; i < value.size; ++i) keys.push_back(&value.items[2 * i]);
  if (style.sort_keys)
    std::stable_sort(keys.begin(), keys.end(),
                     [&](const Datum* a, const Datum* b) { return order(*a, *b, "<") == -1; });
  put("{");
  bool first = true;
  for (const Datum* key : keys) {
    if (!first) put(style.between);
    first = false;
    line(depth + 1);
    if (key->is_string()) {
      json_string(*key, style.ascii, out);
    } else if (key->kind == Kind::none) {
      out.write("\"null\"", key->message, 0);
    } else if (is_number(*key)) {
      out.write("\"" + number(*key) + "\"", key->message, 0);
    } else {
      fail("keys must be str, int, float, bool or None, not " + type_name(key->kind));
    }
    put(style.after_key);
    json(key[1], style, out, depth + 1);
  }
  line(depth);
  put("}");
}

}  // namespace meshwright::chat
