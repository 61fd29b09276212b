#include <algorithm>
#include <charconv>

#include "sdk/text/chat/renderer.h"
#include "sdk/text/chat/unicode.h"

namespace meshwright::chat {

Datum Renderer::call_method(const Datum& self, Method method, std::string_view name,
                            const Arguments& given) {
  if (self.is_string()) return string_method(self, method, name, given);
  return self.kind == Kind::dict ? dict_method(self, method, given)
                                 : list_method(self, method, given);
}

Datum Renderer::starts(const Datum& self, const Arguments& given, bool at_end) {
  Bound bound = bind(at_end ? "endswith" : "startswith", given, {"affix"}, 1);
  auto fits = [&](const Datum& affix) {
    if (affix.is_undefined()) fail_undefined(affix);
    if (!affix.is_string())
      fail(std::string(at_end ? "endswith" : "startswith") +
           " first arg must be str or a tuple of str, not " + type_name(affix.kind));
    spend(affix.size / 8);
    return at_end ? self.view().ends_with(affix.view()) : self.view().starts_with(affix.view());
  };
  if (bound[0]->kind != Kind::tuple) return Datum::boolean(fits(*bound[0]));
  return Datum::boolean(std::any_of(bound[0]->items, bound[0]->items + bound[0]->size, fits));
}

Datum Renderer::find_text(const Datum& self, Method method, const Arguments& given) {
  Bound bound = bind("find", given, {"sub"}, 1);
  if (!bound[0]->is_string()) fail("must be str, not " + type_name(bound[0]->kind));
  std::string_view text = self.view(), wanted = bound[0]->view();
  spend(text.size());
  if (method == Method::count) {
    if (wanted.empty()) return Datum::whole(static_cast<int64_t>(unicode::length(text)) + 1);
    int64_t count = 0;
    for (size_t at = text.find(wanted); at != std::string_view::npos;
         at = text.find(wanted, at + wanted.size()))
      ++count;
    return Datum::whole(count);
  }
  const bool last = method == Method::rfind || method == Method::rindex;
  size_t at = last ? text.rfind(wanted) : text.find(wanted);
  if (at == std::string_view::npos) {
    if (method == Method::index || method == Method::rindex) fail("substring not found");
    return Datum::whole(-1);
  }
  return Datum::whole(static_cast<int64_t>(unicode::length(text.substr(0, at))));
}

bool Renderer::all_chars(const Datum& self, Method method) {
  static constexpr std::pair<Method, bool (*)(char32_t)> kPredicates[] = {
      {Method::isdigit, unicode::is_digit},
      {Method::isdecimal, unicode::is_decimal},
      {Method::isnumeric, unicode::is_numeric},
      {Method::isalpha, unicode::is_alpha},
      {Method::isspace, unicode::is_blank},
      {Method::isalnum, [](char32_t code) { return code != '_' && unicode::is_word(code); }}};
  const auto* is = std::find_if(std::begin(kPredicates), std::end(kPredicates),
                                [&](const auto& one) { return one.first == method; });
  const bool of_case = is == std::end(kPredicates), upper = method == Method::isupper;
  std::string_view text = self.view();
  spend(text.size());
  bool cased = false;
  for (size_t at = 0; at < text.size();) {
    auto [code, size] = unicode::decode(text, at);
    at += size;
    if (!of_case && !is->second(code)) return false;
    if (!of_case) continue;
    if (upper ? unicode::is_lower(code) : unicode::is_upper(code)) return false;
    if (unicode::is_title(code)) return false;
    cased = cased || (upper ? unicode::is_upper(code) : unicode::is_lower(code));
  }
  return of_case ? cased : !text.empty();
}

// str.istitle: big letters begin words, and small ones do not.
bool Renderer::is_title(const Datum& self) {
  std::string_view text = self.view();
  spend(text.size());
  bool within = false, cased = false;
  for (size_t at = 0; at < text.size();) {
    auto [code, size] = unicode::decode(text, at);
    at += size;
    const bool big = unicode::is_upper(code) || unicode::is_title(code);
    if (big ? within : unicode::is_lower(code) && !within) return false;
    within = big || unicode::is_lower(code);
    cased = cased || within;
  }
  return cased;
}

Datum Renderer::string_method(const Datum& self, Method method, std::string_view name,
                              const Arguments& given) {
  std::string called(name);
  switch (method) {
    case Method::strip:
    case Method::lstrip:
    case Method::rstrip: {
      Bound bound = bind(called, given, {"chars"});
      return strip(self, bound[0], method != Method::rstrip, method != Method::lstrip);
    }
    case Method::split:
      return split(self, given, false);
    case Method::rsplit:
      return split(self, given, true);
    case Method::splitlines: {
      Bound bound = bind(called, given, {"keepends"});
      return split_lines(self, flag(bound[0], false));
    }
    case Method::startswith:
      return starts(self, given, false);
    case Method::endswith:
      return starts(self, given, true);
    case Method::replace: {
      Bound bound = bind(called, given, {"old", "new", "count"}, 2);
      for (size_t i = 0; i < 2; ++i) {
        if (bound[i]->is_undefined()) fail_undefined(*bound[i]);
        if (!bound[i]->is_string())
          fail("replace() argument " + std::to_string(i + 1) + " must be str, not " +
               type_name(bound[i]->kind));
      }
      return replace(self, *bound[0], *bound[1],
                     bound[2] == nullptr ? -1 : whole_of(*bound[2], "the count of replace()"));
    }
    case Method::removeprefix:
    case Method::removesuffix: {
      Bound bound = bind(called, given, {"affix"}, 1);
      if (!bound[0]->is_string()) fail(called + "() argument must be str");
      std::string_view affix = bound[0]->view();
      if (method == Method::removeprefix)
        return self.view().starts_with(affix) ? cut(self, affix.size(), self.size) : self;
      return self.view().ends_with(affix) ? cut(self, 0, self.size - affix.size()) : self;
    }
    case Method::join: {
      Bound bound = bind(called, given, {"iterable"}, 1);
      return joined(self, need_items(*bound[0]), true);
    }
    case Method::find:
    case Method::rfind:
    case Method::index:
    case Method::rindex:
    case Method::count:
      return find_text(self, method, given);
    case Method::center:
    case Method::ljust:
    case Method::rjust:
      return padded(self, method, given);
    case Method::partition:
      return partition(self, given, false);
    case Method::rpartition:
      return partition(self, given, true);
    case Method::expandtabs:
      return expand_tabs(self, given);
    case Method::format:
      return format(self, given);
    case Method::upper:
    case Method::lower:
    case Method::title:
    case Method::capitalize:
    case Method::casefold:
    case Method::swapcase:
      bind(called, given, {});
      return cased(self, method == Method::upper      ? Case::upper
                         : method == Method::lower    ? Case::lower
                         : method == Method::title    ? Case::title
                         : method == Method::casefold ? Case::fold
                         : method == Method::swapcase ? Case::swap
                                                      : Case::capitalize);
    case Method::isascii:
    case Method::isidentifier:
    case Method::isprintable:
    case Method::istitle:
    case Method::isdigit:
    case Method::isdecimal:
    case Method::isnumeric:
    case Method::isalpha:
    case Method::isalnum:
    case Method::isspace:
    case Method::isupper:
    case Method::islower:
      bind(called, given, {});
      return Datum::boolean(method == Method::isascii        ? unicode::ascii(self.view())
                            : method == Method::isidentifier ? unicode::is_identifier(self.view())
                            : method == Method::isprintable  ? unicode::is_printable(self.view())
                            : method == Method::istitle      ? is_title(self)
                                                             : all_chars(self, method));
    case Method::zfill: {
      Bound bound = bind(called, given, {"width"}, 1);
      int64_t lacking = whole_of(*bound[0], "the width of zfill()") -
                        static_cast<int64_t>(unicode::length(self.view()));
      bool sign = self.view().starts_with('-') || self.view().starts_with('+');
      Datum zeros = repeated(marked(Datum::string("0"), self.marked), lacking);
      if (!sign) return add(zeros, self);
      return add(add(cut(self, 0, 1), zeros), cut(self, 1, self.size));
    }
    default:
      fail("the method '" + called + "' of str is not supported");
  }
}

Datum Renderer::pair(const Datum& first, const Datum& second) {
  Datum* items = take<Datum>(2);
  items[0] = first;
  items[1] = second;
  return Datum::sequence(Kind::tuple, items, 2);
}

Datum Renderer::dict_method(const Datum& self, Method method, const Arguments& given) {
  switch (method) {
    case Method::get: {
      Bound bound = bind("get", given, {"key", "default"}, 1);
      if (const Datum* found = find(self, *bound[0])) return *found;
      return bound[1] == nullptr ? Datum::none() : *bound[1];
    }
    case Method::keys:
    case Method::values:
    case Method::items: {
      bind("items", given, {});
      spend(self.size);
      Datum* items = take<Datum>(self.size);
      for (uint32_t i = 0; i < self.size; ++i) {
        const Datum* entry = &self.items[2 * size_t{i}];
        items[i] = method == Method::keys     ? entry[0]
                   : method == Method::values ? entry[1]
                                              : pair(entry[0], entry[1]);
      }
      Datum out = Datum::sequence(Kind::view, items, self.size);
      out.holder = static_cast<uint8_t>(method == Method::keys     ? View::keys
                                        : method == Method::values ? View::values
                                                                   : View::items);
      return out;
    }
    default:
      bind("copy", given, {});
      return self;
  }
}

Datum Renderer::list_method(const Datum& self, Method method, const Arguments& given) {
  if (method == Method::copy) {
    bind("copy", given, {});
    return self;
  }
  Bound bound = bind(method == Method::index ? "index" : "count", given, {"value"}, 1);
  spend(self.size);
  int64_t count = 0;
  for (uint32_t i = 0; i < self.size; ++i) {
    if (!equal(self.items[i], *bound[0])) continue;
    if (method == Method::index) return Datum::whole(i);
    ++count;
  }
  if (method == Method::index) fail("the value is not in the list");
  return Datum::whole(count);
}

namespace {

// The names that every object of Python has: the sandbox makes them undefined. Others that begin
// with underscores may be keys.
bool is_private(std::string_view name) { return name.starts_with("__") && name.ends_with("__"); }

}  // namespace

const Datum* Renderer::find(const Datum& dict, std::string_view key) {
  spend(dict.size / 8);
  const Datum* at = dict.items;
  for (const Datum* end = at + 2 * size_t{dict.size}; at != end; at += 2)
    if (at->is_string() && at->size == key.size() && at->view() == key) return at + 1;
  return nullptr;
}

const Datum* Renderer::find(const Datum& dict, const Datum& key) {
  if (key.is_string()) return find(dict, key.view());
  if (key.kind == Kind::list || key.kind == Kind::dict)
    fail("unhashable type: '" + type_name(key.kind) + "'");
  spend(dict.size);
  for (uint32_t i = 0; i < dict.size; ++i)
    if (equal(dict.items[2 * size_t{i}], key)) return &dict.items[2 * size_t{i} + 1];
  return nullptr;
}

std::optional<Owner> Renderer::owner_of(const Datum& self) {
  switch (self.kind) {
    case Kind::string:
      return Owner::string;
    case Kind::dict:
      return Owner::dict;
    case Kind::list:
      return Owner::list;
    case Kind::tuple:
    case Kind::range:
      return Owner::tuple;
    default:
      return std::nullopt;
  }
}

Datum Renderer::method(const Datum& self, std::string_view name) {
  const std::optional<Owner> owner = owner_of(self);
  const Method found = owner ? method_named(*owner, name) : Method::unknown;
  if (found == Method::unknown || (found == Method::other_markup && !self.marked)) return {};
  if (found == Method::mutating) {
    Datum out = Datum::undefined(name, Datum::kUnsafe);
    out.message = static_cast<int32_t>(self.kind);
    return out;
  }
  Callable of{.type = Callable::Type::method};
  of.method = found;
  of.self = self;
  of.name = name;
  return callable(of);
}

// x.name: a method first, then a key.
Datum Renderer::attribute(const Datum& value, std::string_view name) {
  if (value.kind == Kind::undefined) fail_undefined(value);
  if (value.kind == Kind::loop) return loop_attribute(*value.loop, name);
  auto unknown = [&] { return Datum::undefined(name, static_cast<uint8_t>(value.kind)); };
  if (value.kind == Kind::space) {
    const Space& space = *value.space;
    for (uint32_t i = 0; i < space.count; ++i)
      if (space.entries[2 * i].view() == name) return space.entries[2 * i + 1];
    return unknown();
  }
  if (value.kind == Kind::callable && value.callable->type == Callable::Type::cycler) {
    Callable of = *value.callable;
    if (name == "current") return of.items[*of.at];
    if (name != "next" && name != "reset") return unknown();
    of.type = name == "next" ? Callable::Type::cycler_next : Callable::Type::cycler_reset;
    return callable(of);
  }
  if (value.kind == Kind::tuple && value.marked && (name == "grouper" || name == "list"))
    return value.items[name == "grouper" ? 0 : 1];
  if (value.kind == Kind::range)
    for (ptrdiff_t i = 0; const std::string_view part : {"start", "stop", "step"})
      if (++i; name == part) return value.items[i - 4];
  if (value.kind == Kind::callable && value.callable->type == Callable::Type::macro &&
      name == "name")
    return Datum::string(value.callable->name);
  // Most are keys of messages: these are looked up before a method is made.
  if (value.kind == Kind::dict && method_named(Owner::dict, name) == Method::unknown) {
    if (is_private(name)) return unknown();
    const Datum* found = find(value, name);
    return found != nullptr ? *found : unknown();
  }
  Datum bound = method(value, name);
  return bound.kind == Kind::callable || bound.holder != 0 ? bound : unknown();
}

// x[key]: a key first, then a method.
Datum Renderer::item(const Datum& value, const Datum& key) {
  if (value.kind == Kind::undefined) fail_undefined(value);
  auto unknown = [&] {
    return Datum::undefined(as_text(key).view(), static_cast<uint8_t>(value.kind));
  };
  if (value.kind == Kind::dict) {
    // A list as a key is a TypeError, which is no such element.
    if (key.kind != Kind::list && key.kind != Kind::dict)
      if (const Datum* found = find(value, key)) return *found;
  } else if (key.kind == Kind::integer || key.kind == Kind::boolean) {
    if (value.is_indexed() || value.is_string()) {
      int64_t index = key.kind == Kind::boolean ? key.truth : key.integer;
      if (value.is_string()) {
        std::string_view text = value.view();
        spend(text.size());
        auto size = static_cast<int64_t>(unicode::length(text));
        if (index < 0) index += size;
        if (index < 0 || index >= size) return unknown();
        size_t begin = unicode::offset(text, static_cast<size_t>(index));
        return cut(value, begin, begin + unicode::decode(text, begin).size);
      }
      if (index < 0) index += value.size;
      if (index < 0 || index >= value.size) return unknown();
      return value.items[index];
    }
  }
  if (key.is_string() && !is_private(key.view())) {
    if (value.kind == Kind::dict) {
      Datum bound = method(value, key.view());
      if (bound.kind == Kind::callable || bound.holder != 0) return bound;
    } else {
      return attribute(value, key.view());
    }
  }
  return unknown();
}

Datum Renderer::path(const Datum& value, const Datum& path, const Datum* otherwise) {
  auto taken = [&](const Datum& from, const Datum& key) {
    const Datum out = item(from, key);
    return out.is_undefined() && is_given(otherwise) ? *otherwise : out;
  };
  if (!path.is_string()) return taken(value, path);
  Datum at = value;
  std::string_view rest = path.view();
  while (true) {
    size_t dot = rest.find('.');
    std::string_view part = rest.substr(0, dot);
    int64_t index = 0;
    auto [end, failed] = std::from_chars(part.data(), part.data() + part.size(), index);
    bool number = failed == std::errc() && end == part.data() + part.size() && part[0] != '-';
    // Kept: the message of what is undefined names it.
    at = taken(at, number ? Datum::whole(index) : Datum::string(copied(part).view()));
    if (dot == std::string_view::npos) return at;
    rest = rest.substr(dot + 1);
  }
}

Datum Renderer::loop_attribute(Loop& loop, std::string_view name) {
  size_t index = loop.index0;
  auto number = [](size_t value) { return Datum::whole(static_cast<int64_t>(value)); };
  auto length = [&] { return size_t{length_of(loop)}; };
  if (name == "index") return number(index + 1);
  if (name == "index0") return number(index);
  if (name == "first") return Datum::boolean(index == 0);
  auto next = [&] {
    loop.asked = std::max(loop.asked, loop.index0 + 2);
    return has(loop, index + 1);
  };
  if (name == "last") return Datum::boolean(!next());
  if (name == "length") return number(length());
  if (name == "revindex") return number(length() - index);
  if (name == "revindex0") return number(length() - index - 1);
  if (name == "depth") return number(size_t{loop.depth0} + 1);
  if (name == "depth0") return number(loop.depth0);
  if (name == "previtem")
    return index == 0 ? Datum::undefined("there is no previous item") : loop.items[index - 1];
  if (name == "nextitem")
    return next() ? loop.items[index + 1] : Datum::undefined("there is no next item");
  if (name == "cycle" || name == "changed") {
    Callable of{.type =
                    name == "cycle" ? Callable::Type::loop_cycle : Callable::Type::loop_changed};
    of.self.kind = Kind::loop;
    of.self.loop = &loop;
    return callable(of);
  }
  return Datum::undefined(name, static_cast<uint8_t>(Kind::loop));
}

Datum Renderer::sliced(const Datum& value, const Datum& begin, const Datum& end,
                       const Datum& step) {
  if (value.kind == Kind::undefined) fail_undefined(value);
  if (!value.is_indexed() && !value.is_string())
    fail(value.kind == Kind::dict ? "unhashable type: 'slice'"
                                  : "'" + type_name(value.kind) + "' object is not subscriptable");
  auto bound = [&](const Datum& part, int64_t otherwise) {
    if (part.kind == Kind::none) return otherwise;
    return whole_of(part, "a bound of a slice");
  };
  int64_t stride = bound(step, 1);
  if (stride == 0) fail("slice step cannot be zero");
  spend(value.size);
  std::string_view text = value.is_string() ? value.view() : std::string_view();
  bool wide = value.is_string() && !unicode::ascii(text);
  auto size = static_cast<int64_t>(wide ? unicode::length(text) : value.size);
  int64_t low = stride > 0 ? 0 : -1, high = stride > 0 ? size : size - 1;
  auto clamp = [&](int64_t at) { return std::clamp(at < 0 ? at + size : at, low, high); };
  int64_t from = begin.kind == Kind::none ? (stride > 0 ? low : high) : clamp(bound(begin, 0));
  int64_t to = end.kind == Kind::none ? (stride > 0 ? high : low) : clamp(bound(end, 0));
  if (stride == 1 && value.kind != Kind::range) {
    to = std::max(from, to);
    auto first = static_cast<size_t>(from), last = static_cast<size_t>(to);
    if (value.is_listed()) {
      Datum out = marked(value, false);
      out.items += first;
      out.size = static_cast<uint32_t>(last - first);
      return out;
    }
    if (!wide) return cut(value, first, last);
    size_t at = unicode::offset(text, first);
    return cut(value, at, at + unicode::offset(text.substr(at), last - first));
  }
  if (value.kind == Kind::range) {
    const int64_t start = value.items[-3].integer, each = value.items[-1].integer,
                  way = stride > 0 ? to - from : from - to, pace = stride > 0 ? stride : -stride;
    return range_of(start + from * each, start + to * each, each * stride,
                    way <= 0 ? 0 : static_cast<size_t>((way - 1) / pace + 1));
  }
  std::vector<size_t> picked;
  for (int64_t i = from; stride > 0 ? i < to : i > to; i += stride) {
    picked.push_back(static_cast<size_t>(i));
    if (stride > 0 ? stride > to - i : stride < to - i) break;  // nor does i + stride overflow
  }
  if (!value.is_string()) {
    Datum* items = take<Datum>(picked.size());
    for (size_t i = 0; i < picked.size(); ++i) items[i] = value.items[picked[i]];
    Datum out = Datum::sequence(value.kind, items, picked.size());
    out.message = value.message;
    return out;
  }
  std::vector<size_t> starts;
  for (size_t at = 0; at < text.size(); at += unicode::decode(text, at).size) starts.push_back(at);
  starts.push_back(text.size());
  Writer out;
  for (size_t i : picked) out.write(value, starts[i], starts[i + 1], 0);
  return marked(text_of(out), value.marked);
}

}  // namespace meshwright::chat
